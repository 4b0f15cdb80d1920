"""How a process of a run was launched, and how it ends: one line, one status."""

import os
import platform
import signal
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from fednnnn_plugin.errors import LaunchError, RunError, UserError

_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID")
_LOCAL_RANKS = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
_HEAD_START = 5.0  # seconds
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


class Terminated(BaseException):
    """SIGTERM, SIGHUP or SIGUSR1 arrived; like KeyboardInterrupt, not an error to recover from."""


def launched_ranks() -> int:
    """Return how many processes were launched together; 1 without a launcher."""
    return _first(_SIZES, 1)


def launched_rank() -> int:
    """Return which of them this one is; 0 without a launcher."""
    return _first(_RANKS, 0) if launched_ranks() > 1 else 0


def told_here(message: str, error: BaseException) -> str:
    """Return what this process says of an error that ends it; nothing where another one says it.

    All ranks may have the same mistake, or those of one machine: its first rank says it, a while
    later, as rank 0 ends the others where it has the mistake too.
    """
    rank = launched_rank()
    if rank == 0 or isinstance(error, LaunchError):
        return message
    if _first(_LOCAL_RANKS, rank) or isinstance(error, Terminated | KeyboardInterrupt):
        return ""
    time.sleep(_HEAD_START)
    return f"rank {rank} on {platform.node()}: {message}"


def _first(names: tuple[str, ...], default: int) -> int:
    values = (os.environ.get(name, "") for name in names)
    return next((int(value) for value in values if value.isdecimal()), default)


@contextmanager
def signals_raised() -> Iterator[None]:
    """Raise ``KeyboardInterrupt`` where SIGINT arrives, ``Terminated`` where another one does.

    SIGHUP is a closed terminal's. SIGUSR1 is what Open MPI's mpirun passes on and waits; of SIGINT
    and SIGTERM it passes on SIGTERM, and kills a quarter of a second later.

    The first one ends the process: those that follow are ignored, so that they cost it neither the
    checkpoint that it then writes nor its exit status. Batch systems often send several. What a
    process was started to ignore, as a job in the background is, it ignores.
    """
    before = {number: signal.getsignal(number) for number in _ENDING}
    handled = [number for number, handler in before.items() if handler != signal.SIG_IGN]

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        for other in handled:
            signal.signal(other, signal.SIG_IGN)
        raise KeyboardInterrupt if number == signal.SIGINT else Terminated

    try:
        for number in handled:
            signal.signal(number, end)
        yield
    finally:
        for number in handled:
            if signal.getsignal(number) == end:  # none has arrived
                signal.signal(number, before[number])


@contextmanager
def resumable() -> Iterator[None]:
    """Let an interrupt of what is inside say how to go on."""
    try:
        yield
    except (KeyboardInterrupt, Terminated) as error:
        error.args = ("go on with --resume",)
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
            return f"{where}{error.strerror or error}", 1
        case KeyboardInterrupt():
            return "; ".join(["interrupted", *error.args]), 130
        case Terminated():
            return "; ".join(["terminated", *error.args]), 143
    return "".join(traceback.format_exception(error)).rstrip(), 1
