"""How a process of a run was launched, what it says, and how it ends: one line, one status."""

import errno
import os
import platform
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import click

from fednnnn_plugin.errors import LaunchError, RunError, UserError, escaped
from fednnnn_plugin.processes.machine_load import share_waited

_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID")
_LOCAL_RANKS = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
_HEAD_START = 5.0  # seconds, on a machine with a core for everything that runs
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


class Terminated(BaseException):
    """SIGTERM, SIGHUP or SIGUSR1 arrived; like KeyboardInterrupt, not an error to recover from."""


def launched_ranks() -> int:
    """Return how many processes were launched together; 1 without a launcher."""
    return _first(_SIZES, 1)


def launched_rank() -> int:
    """Return which of them this one is; 0 without a launcher."""
    return _first(_RANKS, 0) if launched_ranks() > 1 else 0


def told_here(message: str, error: BaseException) -> str:
    """Return what this process says of an error that ends it; nothing of a signal that all get.

    All ranks may have the same mistake, or those of one machine. Rank 0 says it and so ends the
    others, even if it finds it later; a machine's first rank waits for rank 0, the others for both,
    the longer the busier the machine.
    """
    rank = launched_rank()
    if rank == 0 or isinstance(error, LaunchError):
        return message
    if isinstance(error, Terminated | KeyboardInterrupt):
        return ""
    slower = 1.0 / (1.0 - (share_waited() or 0.0))
    time.sleep(_HEAD_START * slower * (2 if _first(_LOCAL_RANKS, rank) else 1))
    return f"rank {rank} on {platform.node()}: {message}"


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

    def __init__(self) -> None:
        self.asked: type[BaseException] | None = None

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        if not _stopping(sys.exc_info()[1]):
            self.asked = KeyboardInterrupt if number == signal.SIGINT else Terminated
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
def signals_raised() -> Iterator[None]:
    """Raise ``KeyboardInterrupt`` where SIGINT arrives, ``Terminated`` where another one does.

    SIGHUP is a closed terminal's. SIGUSR1 is what Open MPI's mpirun passes on and waits; of SIGINT
    and SIGTERM it passes on SIGTERM, and kills a quarter of a second later.

    The first one ends the process: those that come while its exception is on the way are ignored,
    so that they cost it neither the checkpoint that it then writes nor its exit status. Batch
    systems often send several. Where something swallowed that exception, the next signal raises
    again, as does :func:`raise_lost_stop`, or the end of this context. What a process was started
    to ignore, as a job in the background is, it ignores.
    """
    before = {number: signal.getsignal(number) for number in ENDING}
    handled = [number for number, handler in before.items() if handler != signal.SIG_IGN]
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
                signal.signal(number, signal.SIG_IGN if stop.asked else before[number])


@contextmanager
def resumable() -> Iterator[None]:
    """Let an interrupt of what is inside say how to continue."""
    try:
        yield
    except (KeyboardInterrupt, Terminated) as error:
        error.args = ("continue with --resume",)
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
