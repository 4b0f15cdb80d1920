"""The processes that share a round's clients: this one alone, or MPI's ranks.

With many processes no collective is a client's, but those of a client method that keeps something
at its clients: by ``scatter`` rank 0 hands out what they kept, and by ``gather`` it gets it back.

1. ``broadcast``: rank 0 sends the served model and what a client method sends beside it, and by
   ``broadcast_object`` what a user's sampler drew.
2. ``reduce``: all exchange what they know of their clients, a row each, and which bins their sums
   use; then the int64 sums are added up at rank 0, exactly.
3. Where a model is tested, ``broadcast`` and ``gather``: each rank tests it on some of the batches.
"""

import logging
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor

from fednnnn_plugin.errors import UserError, shown
from fednnnn_plugin.processes.devices import core_ids
from fednnnn_plugin.processes.endings import (
    Terminated,
    ending,
    launched_ranks,
    leave_unsaid,
    of_rank,
    say,
)

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm, Request

_log = logging.getLogger(__name__)

# A wait asks again after the first, soon after the last of these seconds.
_SHORTEST_POLL, _LONGEST_POLL = 2e-5, 1e-3
#: Seconds after which rank 0 names the ranks that it still waits for; then after twice as many.
SILENT_SECONDS = 300.0
# What all ranks know, rank 0 says, and a signal reaches all of them: it then writes a checkpoint,
# and ends the others when it has.
_TIME_TO_SAVE = 60.0


class AgreedError(UserError):
    """A user's mistake that all ranks have agreed on: each raises it."""


class Summable(Protocol):
    """A part of a sum that is spread over processes."""

    def combine(
        self, exchange: Callable[[Any], list[Any]], add_up: Callable[[Tensor], Tensor | None]
    ) -> bool:
        """Become the sum of all parts; return whether this process has it.

        ``exchange`` gives what every process gave. ``add_up`` gives the sum of their int64 vectors,
        on the CPU, or None on a process that is not to have it.
        """


T = TypeVar("T")
S = TypeVar("S", bound=Summable)


class Ranks:
    """The processes of a run, which all train: this one alone, which also holds the server."""

    backend = "sp"
    rank = 0
    size = 1
    local_rank = 0  # among the ranks of this machine
    core_sharers = 1  # processes of this machine that may run on its cores, itself included

    def barrier(self) -> None:
        """Return when every rank has called this."""

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite tensors with rank 0's."""

    def broadcast_object(self, thing: T | None) -> T:
        """Return what rank 0 gives."""
        assert thing is not None
        return thing

    def scatter(self, parts: Sequence[T]) -> T:
        """Return this rank's part of what rank 0 gives."""
        return parts[0]

    def gather(self, part: T) -> list[T]:
        """Return what each rank gives on rank 0, nothing elsewhere."""
        return [part]

    def allgather(self, part: T) -> list[T]:
        """Return what each rank gives."""
        return [part]

    def reduce(self, part: S) -> S | None:
        """Return the sum of all ranks' parts on rank 0, None elsewhere."""
        return part

    def allreduce_min(self, number: int) -> int:
        """Return the least of what the ranks give."""
        return number

    def agree(self, error: UserError | None = None) -> None:
        """Return if no rank has an error; else raise on all of them what those say that have."""
        if error:
            raise error

    @contextmanager
    def one_before_others(self) -> Iterator[bool]:
        """Let one rank of each machine run a block first, as it may download or write a cache.

        The value says whether this rank is it.
        """
        first = self.local_rank == 0
        if not first:
            self.agree()
        yield first
        if first:
            self.agree()

    def sharers(self, device: str) -> int:
        """Return how many processes of this machine have the same device, this one included."""
        return self.core_sharers

    def abort(self, status: int) -> None:
        """End the processes of all ranks; one alone is left to its caller to end."""


class MpiRanks(Ranks):
    """The ranks of an MPI communicator, of which rank 0 holds the server.

    Ranks wait for each other in ``gather`` and ``barrier``, which are open to signals, take no core
    from those that still train, and know on rank 0 who is missing. MPI's own collectives come after
    a barrier, and take no longer than the transfer.
    """

    backend = "MPI"

    def __init__(self, comm: "Intracomm") -> None:
        from mpi4py import MPI

        self._mpi, self._comm = MPI, comm.Dup()  # a FedML script sends by its own
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.library: str = MPI.Get_library_version().splitlines()[0].partition(",")[0]
        self._hosts = self._comm.allgather(platform.node())
        self._local = comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.local_rank = self._local.Get_rank()
        # Launchers bind ranks to cores or not: one that is bound has its cores for itself.
        own = core_ids()
        self.core_sharers = sum(not own.isdisjoint(other) for other in self._local.allgather(own))

    def barrier(self) -> None:
        self.gather(None)
        self._wait_for(self._comm.Ibarrier())

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        if not tensors:  # of a client method that sends nothing; alike on all ranks
            return
        flat = torch.cat([tensor.reshape(-1).view(torch.uint8).cpu() for tensor in tensors])
        self.barrier()
        self._comm.Bcast(flat.numpy())
        if self.rank:
            sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
            for tensor, content in zip(tensors, flat.split(sizes), strict=True):
                # A copy is aligned for the dtype that the bytes are of.
                tensor.copy_(content.clone().view(tensor.dtype).view(tensor.shape))

    def broadcast_object(self, thing: T | None) -> T:
        self.barrier()
        given: T = self._comm.bcast(thing)
        return given

    def scatter(self, parts: Sequence[T]) -> T:
        self.barrier()
        return self._comm.scatter(parts or None)

    def gather(self, part: T) -> list[T]:
        if self.rank:
            self._wait_for(self._comm.isend(part, 0))
            return []
        parts, missing = {0: part}, set(range(1, self.size))

        def are_here() -> bool:
            for rank in tuple(missing):
                if message := self._comm.improbe(rank):
                    parts[rank] = message.recv()
                    missing.discard(rank)
            return not missing

        self._wait_until(are_here, missing)
        return [parts[rank] for rank in range(self.size)]

    def allgather(self, part: T) -> list[T]:
        return self.broadcast_object(self.gather(part))

    def reduce(self, part: S) -> S | None:
        return part if part.combine(self.allgather, self._sum) else None

    def allreduce_min(self, number: int) -> int:
        return min(self.allgather(number))

    def agree(self, error: UserError | None = None) -> None:
        ranks_of: dict[str, list[int]] = {}
        for rank, said in enumerate(self.allgather(str(error) if error else None)):
            if said is not None:
                ranks_of.setdefault(said, []).append(rank)
        if ranks_of:
            raise AgreedError(
                "\n".join(
                    said if len(ranks) == self.size else f"{self.named(ranks)}: {said}"
                    for said, ranks in ranks_of.items()
                )
            ) from error

    def named(self, ranks: Sequence[int]) -> str:
        """Name ranks and where they run, at most three of them."""
        more = f" and {len(ranks) - 3} more" if len(ranks) > 3 else ""
        return ", ".join(f"rank {rank} on {self._hosts[rank]}" for rank in ranks[:3]) + more

    def sharers(self, device: str) -> int:
        return self._local.allgather(device).count(device)

    def abort(self, status: int) -> None:
        self._comm.Abort(status)

    def _sum(self, integers: Tensor) -> Tensor | None:
        """Add up int64 vectors at rank 0, in place."""
        self.barrier()
        if self.rank:
            self._comm.Reduce(integers.numpy(), None, self._mpi.SUM)
            return None
        self._comm.Reduce(self._mpi.IN_PLACE, integers.numpy(), self._mpi.SUM)
        return integers

    def _wait_for(self, request: "Request") -> None:
        self._wait_until(lambda: bool(request.Test()), set())

    def _wait_until(self, done: Callable[[], bool], missing: set[int]) -> None:
        """Wait without taking a core from others, and open to signals; name who is ``missing``."""
        begun, pause, silent = time.monotonic(), _SHORTEST_POLL, SILENT_SECONDS
        while not done():
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_POLL)
            if missing and (waited := time.monotonic() - begun) > silent:
                silent *= 2
                _log.warning(
                    "%s: nothing heard for %.0f s: the run waits for it; if it does not train any "
                    "more, end the job and continue with --resume",
                    *(self.named(sorted(missing)), waited),
                )


@contextmanager
def agreed(ranks: Ranks) -> Iterator[None]:
    """Raise on all ranks where one raises a user's mistake, which may be that of its machine.

    All ranks meet here, or each where the next one of them calls ``ranks.agree``.
    """
    try:
        yield
    except AgreedError:
        raise
    except UserError as error:
        ranks.agree(error)
    ranks.agree()


def choose_ranks(backend: str | None) -> Ranks:
    """Return the processes of this run: MPI's under ``mpirun``, else this one alone.

    ``backend`` is ``"sp"`` or ``"MPI"`` where it was asked for. Processes that were launched
    together never run each alone: that is an error of the user's, or of the launcher's.
    """
    if backend not in ("sp", "MPI", None):
        raise UserError(f"backend: {shown(backend)}: must be 'sp' or 'MPI'")
    launched = launched_ranks()
    if backend == "sp" and launched > 1:
        raise UserError(f"--backend sp: {launched} processes were launched: start one, or use MPI")
    if backend != "MPI" and launched == 1:
        return Ranks()
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"--backend MPI: mpi4py does not import ({reason}): install fednnnn-plugin[mpi]"
        ) from None
    ranks = MpiRanks(MPI.COMM_WORLD)
    if launched not in (1, ranks.size):
        raise UserError(
            f"--backend MPI: {launched} processes were launched, but MPI sees {ranks.size}: launch "
            f"them with the mpirun of the MPI that mpi4py uses ({ranks.library}); under Slurm, "
            "srun with --mpi=pmix, or mpirun"
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
                time.sleep(_TIME_TO_SAVE)
            else:
                say(message if known else of_rank(message), err=True)
            leave_unsaid()
            ranks.abort(status)
        raise
