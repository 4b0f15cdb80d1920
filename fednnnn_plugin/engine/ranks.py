"""The processes that share a round's clients: this one alone, or MPI's ranks.

With many processes no collective is a client's:

1. ``serve``: rank 0 broadcasts the served model.
2. ``reduce``: all exchange what they know of their clients, a row each, and which bins their sums
   use; then the int64 sums are added up at rank 0, exactly.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from fednnnn_plugin.client.groups import Group
from fednnnn_plugin.engine.endings import launched_ranks
from fednnnn_plugin.errors import LaunchError, UserError
from fednnnn_plugin.server.average import UpdateAccumulator
from fednnnn_plugin.server.layout import ModelState

if TYPE_CHECKING:
    from mpi4py.MPI import Comm, Intracomm, Request

_POLL_SECONDS = 0.001
_MOST_CORES = 8_192


class Ranks(Protocol):
    """Every rank trains; rank 0 also holds the server."""

    rank: int
    size: int
    local_rank: int  # among the ranks of this machine
    core_sharers: int  # ranks of this machine that may run on this one's cores, itself included

    def start(self, round_number: int | None) -> int:
        """Return the last finished round that rank 0 gives."""

    def wait(self) -> None:
        """Return when every rank has called this."""

    def least(self, number: int) -> int:
        """Return the least of what the ranks give."""

    def abort(self, status: int) -> None:
        """End the processes of the other ranks, and this one."""

    def serve(self, state: ModelState) -> None:
        """Overwrite a model with rank 0's."""

    def deal(self, groups: Sequence[Group], work: Sequence[int]) -> list[Group]:
        """Return this rank's share of the groups; ``work`` is what each costs."""

    def reduce(self, part: UpdateAccumulator) -> UpdateAccumulator | None:
        """Return the sum of all ranks' parts on rank 0, None elsewhere."""


class Solo:
    """Standalone: the one process has all clients."""

    rank = 0
    size = 1
    local_rank = 0
    core_sharers = 1

    def start(self, round_number: int | None) -> int:
        """Return what was given."""
        assert round_number is not None
        return round_number

    def wait(self) -> None:
        """Return at once."""

    def least(self, number: int) -> int:
        """Return what was given."""
        return number

    def abort(self, status: int) -> None:
        """Leave it to the caller to end: there are no others."""

    def serve(self, state: ModelState) -> None:
        """Leave the model as it is."""

    def deal(self, groups: Sequence[Group], work: Sequence[int]) -> list[Group]:
        """Return all groups, heaviest first: the last ones to run are then short."""
        return heaviest_first(groups, work)

    def reduce(self, part: UpdateAccumulator) -> UpdateAccumulator:
        """Return the part."""
        return part


class MpiRanks:
    """The ranks of an MPI communicator."""

    def __init__(self, comm: Intracomm) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._comm = comm
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        local = comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.local_rank: int = local.Get_rank()
        self.library: str = MPI.Get_library_version().splitlines()[0].partition(",")[0]
        self.core_sharers = self._core_sharers(local)
        local.Free()

    def _core_sharers(self, local: Comm) -> int:
        """Count the ranks of this machine that may run on this rank's cores, itself included.

        Launchers bind ranks to cores or not: a rank that is bound has its cores for itself.
        """
        mine = np.zeros(_MOST_CORES, dtype=np.uint8)
        mine[list(os.sched_getaffinity(0))] = 1
        all_ = np.empty((local.Get_size(), _MOST_CORES), dtype=np.uint8)
        self._await(local.Iallgather(mine, all_))
        return int((all_ & mine).any(axis=1).sum())

    def start(self, round_number: int | None) -> int:
        """Return the last finished round that rank 0 gives."""
        value = np.array([round_number or 0], dtype=np.int64)
        self._comm.Bcast(value)
        return int(value[0])

    def wait(self) -> None:
        """Return when every rank has called this."""
        self._await(self._comm.Ibarrier())

    def least(self, number: int) -> int:
        """Return the least of what the ranks give."""
        found = np.array([number], dtype=np.int64)
        self._comm.Allreduce(self._mpi.IN_PLACE, found, self._mpi.MIN)
        return int(found[0])

    def serve(self, state: ModelState) -> None:
        """Overwrite a model with rank 0's."""
        tensors = [state.vector, *state.buffers.values()]
        flat = torch.cat([tensor.reshape(-1).view(torch.uint8).cpu() for tensor in tensors])
        self._await(self._comm.Ibcast(flat.numpy()))
        if self.rank:
            sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
            for tensor, content in zip(tensors, flat.split(sizes), strict=True):
                # A copy is aligned for the dtype that the bytes are of.
                tensor.copy_(content.clone().view(tensor.dtype).view(tensor.shape))

    def deal(self, groups: Sequence[Group], work: Sequence[int]) -> list[Group]:
        """Return this rank's share of the groups."""
        return deal(groups, work, self.size)[self.rank]

    def reduce(self, part: UpdateAccumulator) -> UpdateAccumulator | None:
        """Return the sum of all ranks' parts on rank 0, None elsewhere."""
        self.wait()  # open to signals, which the exchange of objects is not
        return part if part.combine(self._comm.allgather, self._sum) else None

    def _sum(self, integers: Tensor) -> Tensor | None:
        """Add up int64 vectors at rank 0, in place."""
        if self.rank:
            self._comm.Reduce(integers.numpy(), None, self._mpi.SUM)
            return None
        self._comm.Reduce(self._mpi.IN_PLACE, integers.numpy(), self._mpi.SUM)
        return integers

    @staticmethod
    def _await(request: Request) -> None:
        """Wait for the slowest rank without taking a core from it, and open to signals."""
        while not request.Test():
            time.sleep(_POLL_SECONDS)

    def abort(self, status: int) -> None:
        """End all ranks of the job."""
        self._comm.Abort(status)


def deal(groups: Sequence[Group], work: Sequence[int], ranks: int) -> list[list[Group]]:
    """Deal groups of clients, heaviest first, each to the rank with the least work so far.

    No rank then has more than 4/3 of the best possible maximum (Graham 1969).

    Returns:
        The groups of each rank; the same on every rank.
    """
    cost = dict(zip(groups, work, strict=True))
    hands: list[list[Group]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for group in heaviest_first(groups, work):
        least = loads.index(min(loads))
        hands[least].append(group)
        loads[least] += cost[group]
    return hands


def heaviest_first(groups: Sequence[Group], work: Sequence[int]) -> list[Group]:
    """Sort groups by falling work, equal ones by their clients."""
    cost = dict(zip(groups, work, strict=True))
    return sorted(groups, key=lambda group: (-cost[group], group))


def choose_ranks(backend: str | None) -> Ranks:
    """Return the processes of this run: MPI's under ``mpirun``, else this one alone.

    Args:
        backend: ``"sp"`` or ``"MPI"`` where it was asked for.

    Raises:
        UserError: MPI without mpi4py: N processes would each run alone.
        LaunchError: they would, as MPI and the launcher do not know each other.
    """
    launched = launched_ranks()
    if backend == "sp" and launched > 1:
        raise UserError(f"--backend sp: {launched} processes were launched: start one, or use MPI")
    if backend != "MPI" and launched == 1:
        return Solo()
    ranks = _world()
    if launched not in (1, ranks.size):
        raise LaunchError(
            f"--backend MPI: {launched} processes were launched, but MPI sees {ranks.size}: launch "
            f"them with the mpirun of the MPI that mpi4py uses ({ranks.library}); under Slurm, "
            "srun with --mpi=pmix, or mpirun"
        )
    return ranks


def _world() -> MpiRanks:
    """Return all ranks of this job.

    Raises:
        UserError: mpi4py, or the MPI library that it needs, is missing.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"--backend MPI: mpi4py does not import ({reason}): install fednnnn-plugin[mpi]"
        ) from None
    return MpiRanks(MPI.COMM_WORLD)
