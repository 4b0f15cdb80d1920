"""The ranks of an MPI job, which wait for each other without a core and know who is missing."""

import logging
import platform
import time
from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fednnnn_plugin.errors import RESUME, UserError, joined, some_of
from fednnnn_plugin.processes.devices import core_ids
from fednnnn_plugin.processes.ranks import AgreedError, Ranks, S, T

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

_log = logging.getLogger(__name__)

# A wait asks again after the first, soon after the last of these seconds.
_SHORTEST_POLL, _LONGEST_POLL = 2e-5, 1e-3
#: Seconds after which rank 0 names the ranks that it still waits for; then after twice as many.
SILENT_SECONDS = 300.0


class MpiRanks(Ranks):
    """The ranks of an MPI communicator, of which rank 0 holds the server.

    Ranks wait for each other in ``gather`` and ``barrier``, which are open to signals, take no core
    from those that still train, and know on rank 0 who is missing. MPI's own collectives come after
    a barrier, and take no longer than the transfer.
    """

    backend = "MPI"

    def __init__(self, comm: "Intracomm") -> None:
        from mpi4py import MPI

        self._mpi, self.rank, self.size = MPI, comm.Get_rank(), comm.Get_size()
        self._comm, request = comm.Idup()  # a FedML script sends by its own
        while not request.Test():  # open to signals: some rank may never come here
            time.sleep(_LONGEST_POLL)
        self.library: str = MPI.Get_library_version().splitlines()[0].partition(",")[0]
        self._hosts = self._comm.allgather(platform.node())
        self._local = comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.local_rank = self._local.Get_rank()
        # Launchers bind ranks to cores or not: one that is bound has its cores for itself.
        own = core_ids()
        self.core_sharers = sum(not own.isdisjoint(other) for other in self._local.allgather(own))

    def barrier(self) -> None:
        """Return when every rank has called this."""
        self.gather(None)
        request, others = self._comm.Ibarrier(), f"one of {self.named(range(1, self.size))}"
        self._wait_until(lambda: bool(request.Test()), lambda: others)

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
            request = self._comm.isend(part, 0)
            self._wait_until(lambda: bool(request.Test()), str)
            return []
        parts, missing = {0: part}, set(range(1, self.size))

        def are_here() -> bool:
            for rank in tuple(missing):
                if message := self._comm.improbe(rank):
                    parts[rank] = message.recv()
                    missing.discard(rank)
            return not missing

        self._wait_until(are_here, lambda: self.named(sorted(missing)))
        return [parts[rank] for rank in range(self.size)]

    def allgather(self, part: T) -> list[T]:
        return self.broadcast_object(self.gather(part))

    def reduce(self, part: S) -> S | None:
        return part if part.combine(self.allgather, self._sum) else None

    def agree(self, error: UserError | None = None) -> None:
        mistakes = error.each if error else ()
        every = self.allgather([line for one in mistakes for line in str(one).split("\n")])
        lines: list[str] = []
        for line in dict.fromkeys(chain.from_iterable(every)):
            ranks = [rank for rank, said in enumerate(every) if line in said]
            lines.append(line if len(ranks) == self.size else f"{self.named(ranks)}: {line}")
        if lines:
            raise AgreedError(joined(lines)) from error

    def named(self, ranks: Sequence[int]) -> str:
        """Name ranks and where they run, at most three of them."""
        return some_of((f"rank {rank} on {self._hosts[rank]}" for rank in ranks), 3)

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

    def _wait_until(self, done: Callable[[], bool], awaited: Callable[[], str]) -> None:
        """Wait without taking a core from others, open to signals; rank 0 names the ``awaited``."""
        begun, pause, silent = time.monotonic(), _SHORTEST_POLL, SILENT_SECONDS
        while not done():
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_POLL)
            if self.rank == 0 and (waited := time.monotonic() - begun) > silent:
                silent *= 2
                _log.warning(
                    "%s: nothing heard for %.0f s: the run waits for it; if it does not train any "
                    "more, end the job and continue with %s",
                    *(awaited(), waited, RESUME),
                )
