"""A job: the ranks that were launched together, and how they end together."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from fednnnn_plugin.errors import BACKEND, UserError, how_to_install, shown
from fednnnn_plugin.processes.endings import (
    Terminated,
    ending,
    launched_ranks,
    leave_unsaid,
    of_rank,
    say,
)
from fednnnn_plugin.processes.mpi_ranks import MpiRanks
from fednnnn_plugin.processes.ranks import AgreedError, Ranks

_log = logging.getLogger(__name__)
_LATE = 60.0  # seconds after which a rank says that it waits for others to begin
# What all ranks know, rank 0 says, and a signal reaches all of them: it then writes a checkpoint,
# and ends the others when it has.
_TIME_TO_SAVE = 60.0


def choose_ranks(backend: str | None, must: str = "begin this run") -> Ranks:
    """Return the processes of this run: MPI's under ``mpirun``, else this one alone.

    ``backend`` is ``"sp"`` or ``"MPI"`` where it was asked for. Processes that were launched
    together never run each alone: that is an error of the user's, or of the launcher's. All ranks
    call this together, and one that waits long for others says what each ``must`` do.
    """
    if backend not in ("sp", "MPI", None):
        raise UserError(BACKEND, shown(backend), "must be 'sp' or 'MPI'")
    launched = launched_ranks()
    if backend == "sp" and launched > 1:
        raise UserError(
            f"{BACKEND} sp", f"{launched} processes were launched", "start one, or use MPI"
        )
    if backend != "MPI" and launched == 1:
        return Ranks()
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"{BACKEND} MPI", f"mpi4py does not import ({reason})", how_to_install("mpi")
        ) from None
    said = of_rank(f"still waiting for the other ranks: each must {must}")
    waiting = threading.Timer(_LATE, _log.warning, [said])
    waiting.daemon = True
    waiting.start()
    try:
        ranks = MpiRanks(MPI.COMM_WORLD)
    finally:
        waiting.cancel()
        waiting.join()  # no fork is to come beside it
    if launched not in (1, ranks.size):
        raise UserError(
            f"{BACKEND} MPI",
            f"{launched} processes were launched, but MPI sees {ranks.size}",
            f"launch them with the mpirun of the MPI that mpi4py uses ({ranks.library}); under "
            "Slurm, srun with --mpi=pmix, or mpirun",
        )
    return ranks


@contextmanager
def ending_together(ranks: Ranks) -> Iterator[None]:
    """End all ranks where this one raises: they would wait for it for ever, also in its exit."""
    try:
        yield
    except BaseException as error:
        if ranks.size > 1:
            message, status = ending(error)
            known = isinstance(error, AgreedError | Terminated | KeyboardInterrupt)
            if ranks.rank and known:
                time.sleep(_TIME_TO_SAVE)  # in which rank 0 ends this one, if it knows it too
            of_all = known and not ranks.rank
            say(message if of_all else of_rank(message), err=True)
            leave_unsaid()
            ranks.abort(status)
        raise
