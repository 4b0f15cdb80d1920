"""How a process of a run was launched, what it says, and how it ends: one line, one status."""

import errno
import os
import platform
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import click

from fednnnn_plugin.errors import RESUME, RunError, UserError, escaped

_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID")
# How OpenMP binds threads, as modules of clusters set it. Where torch is loaded with one of these,
# it binds this process to one core: all clients would train on that one.
OPENMP_BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


class Terminated(BaseException):
    """SIGTERM, SIGHUP or SIGUSR1 arrived; like KeyboardInterrupt, not an error to recover from."""


def launched_ranks() -> int:
    """Return how many processes were launched together; 1 without a launcher."""
    return _first(_SIZES, 1)


def launched_rank() -> int:
    """Return which of them this one is; 0 without a launcher."""
    return _first(_RANKS, 0) if launched_ranks() > 1 else 0


def of_rank(message: str) -> str:
    """Return a message that says which rank of a job it comes from."""
    if launched_ranks() == 1:
        return message
    return f"rank {launched_rank()} on {platform.node()}: {message}"


def say(text: str, *, err: bool = False) -> None:
    """Write lines to standard output, or standard error; control characters in them are escaped.

    A reader that has gone, as in ``| head -1``, or a disk that is full costs no more than the
    lines: what was asked for continues to its end, with its exit status.
    """
    with suppress(OSError):
        click.echo(escaped(text, kept="\n\t"), err=err)


def leave_unsaid() -> None:
    """Drop what standard output could not take, which else would fail again at the exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):  # ValueError: it is closed
            with suppress(OSError, ValueError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)


def _first(names: tuple[str, ...], default: int) -> int:
    values = (os.environ.get(name, "") for name in names)
    return next((int(value) for value in values if value.isdecimal()), default)


class _Stop:
    """The handler of the signals that end a process, and what they asked for."""

    held_in = 0  # the process in which what arrives is raised later

    def __init__(self) -> None:
        self.asked: type[BaseException] | None = None

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        if not _stopping(sys.exc_info()[1]):
            held = _Stop.held_in == os.getpid()
            if not (held and self.asked):
                self.asked = KeyboardInterrupt if number == signal.SIGINT else Terminated
            if not held:
                raise self.asked


def _stopping(error: BaseException | None) -> bool:
    """Whether an error is a stop's, or came up while one was on its way."""
    while error and not isinstance(error, KeyboardInterrupt | Terminated):
        error = error.__context__
    return error is not None


def raise_lost_stop() -> None:
    """Raise once more what a signal raised where something swallowed it.

    Extension modules do so that import others, as torch does NumPy; so does a bare ``except`` of a
    user's. What is about to begin a long work asks here.
    """
    for number in ENDING:
        handler: object = signal.getsignal(number)
        if isinstance(handler, _Stop) and handler.asked:
            raise handler.asked


@contextmanager
def stops_held() -> Iterator[None]:
    """Raise at the end what a signal would raise inside, of what must not be left half done.

    A mask does not: another thread takes the signal, and its handler runs in the main one at once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _Stop.held_in = os.getpid()  # not in a fork that begins inside
    try:
        yield
    finally:
        _Stop.held_in = 0
    raise_lost_stop()


@contextmanager
def signals_raised(*, ends_process: bool = True) -> Iterator[None]:
    """Raise ``KeyboardInterrupt`` where SIGINT arrives, ``Terminated`` where another one does.

    SIGHUP is a closed terminal's. SIGUSR1 is what Open MPI's mpirun passes on and waits; of SIGINT
    and SIGTERM it passes on SIGTERM, and kills a quarter of a second later.

    The first one ends the process: those that come while its exception is on the way are ignored,
    so that they cost it neither the checkpoint that it then writes nor its exit status. Batch
    systems often send several. Where something swallowed that exception, the next signal raises
    again, as does :func:`raise_lost_stop`, or the end of this context. What a process was started
    to ignore, as a job in the background is, it ignores; a handler that a program has set stays,
    and other threads than the main one have none. Where a stop ``ends_process``, signals stay
    ignored after the context, else their handlers are restored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in ENDING}
    usual = (signal.SIG_DFL, signal.default_int_handler)
    handled = [number for number, handler in before.items() if handler in usual]
    stop = _Stop()
    try:
        for number in handled:
            signal.signal(number, stop)
        yield
        raise_lost_stop()
    except BaseException as error:
        if stop.asked and not _stopping(error):  # an import that it broke, perhaps
            raise stop.asked from error
        raise
    finally:
        for number in handled:
            if isinstance(signal.getsignal(number), _Stop):
                ignored = stop.asked and ends_process
                signal.signal(number, signal.SIG_IGN if ignored else before[number])


@contextmanager
def exit_at_signals() -> Iterator[None]:
    """In somebody's program, let what runs save itself where SIGTERM arrives, as at Ctrl-C.

    Then the program exits with a line, by ``SystemExit``.
    """
    try:
        with signals_raised(ends_process=False):
            yield
    except Terminated as error:
        message, status = ending(error)
        say(message, err=True)
        raise SystemExit(status) from None


def open_standard_files() -> None:
    """Open the null device in the place of standard input, output and error that are closed.

    Else the next file or pipe that is opened takes the place, and what is printed goes there.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one


@contextmanager
def resumable() -> Iterator[None]:
    """Let an interrupt of what is inside say how to continue."""
    try:
        yield
    except (KeyboardInterrupt, Terminated) as error:
        error.args = (f"continue with {RESUME}",)
        raise


def ending(error: BaseException) -> tuple[str, int]:
    """Return what to say of an error, and the exit status."""
    match error:
        case UserError():
            return str(error), 2
        case RunError():
            return str(error), 1
        case OSError():  # a full disk, a vanished folder
            where = f"{error.filename}: " if error.filename else ""
            status = 2 if error.errno == errno.ENAMETOOLONG else 1  # the name was given
            return f"{where}{error.strerror or error}", status
        case KeyboardInterrupt():
            return "; ".join(["interrupted", *error.args]), 130
        case Terminated():
            return "; ".join(["terminated", *error.args]), 143
    return "".join(traceback.format_exception(error)).rstrip(), 1
