"""The processes that share a round's clients: this one alone, or MPI's ranks.

With many processes no collective is a client's, but those of a client method that keeps something
at its clients: by ``scatter`` rank 0 hands out what they kept, and by ``gather`` it gets it back.

1. ``serve``: rank 0 broadcasts the served model and what a client method sends beside it, and by
   ``share`` what a user's sampler drew.
2. ``reduce``: all exchange what they know of their clients, a row each, and which bins their sums
   use; then the int64 sums are added up at rank 0, exactly.
3. Where a model is tested, ``serve`` and ``gather``: each rank tests it on some of the batches.
"""

import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from fednnnn_plugin.client.group_sgd import Group
from fednnnn_plugin.errors import LaunchError, UserError, shown
from fednnnn_plugin.processes.devices import core_ids
from fednnnn_plugin.processes.endings import Terminated, ending, launched_ranks
from fednnnn_plugin.server.average import ClientSum

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm, Request

T = TypeVar("T")

_POLL_SECONDS = 0.001
# Most mistakes are seen by all ranks, or by rank 0 while the others wait for its word: rank 0 then
# reports, and all end. On a busy machine some are seconds behind.
_HEAD_START = 10.0
# A signal reaches all ranks; rank 0 then writes a checkpoint, and ends the others when it has.
_TIME_TO_SAVE = 60.0


class _AnotherRanksError(UserError):
    """A user's mistake that another rank has seen: all ranks have agreed on it."""


class Ranks:
    """The processes of a run, which all train: this one alone, which also holds the server."""

    backend = "sp"
    rank = 0
    size = 1
    local_rank = 0  # among the ranks of this machine
    core_sharers = 1  # processes of this machine that may run on its cores, itself included

    def start(self, round_number: int | None) -> int:
        """Return what rank 0 gives, the last finished round; raise where it ends the run instead.

        The others wait here for what rank 0 alone knows, such as a folder that is in use.
        """
        assert round_number is not None
        return round_number

    def wait(self) -> None:
        """Return when every rank has called this."""

    def agree(self, error: UserError | None = None) -> None:
        """Return if no rank has an error; else raise this rank's own, or what another one says."""
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

    def least(self, number: int) -> int:
        """Return the least of what the ranks give."""
        return number

    def sharers(self, device: str) -> int:
        """Return how many processes of this machine have the same device, this one included."""
        return self.core_sharers

    def abort(self, status: int) -> None:
        """End the processes of all ranks; one alone is left to its caller to end."""

    def leave(self, status: int) -> None:
        """End this process where all ranks call this within seconds; else return.

        MPI says less of it than of :meth:`abort`.
        """

    def serve(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite tensors with rank 0's."""

    def scatter(self, parts: Sequence[T]) -> T:
        """Return this rank's part of what rank 0 gives."""
        return parts[0]

    def reduce(self, part: ClientSum) -> ClientSum | None:
        """Return the sum of all ranks' parts on rank 0, None elsewhere."""
        return part

    def share(self, thing: T) -> T:
        """Return what rank 0 gives."""
        return thing

    def gather(self, part: T) -> list[T]:
        """Return what each rank gives on rank 0, nothing elsewhere."""
        return [part]


class MpiRanks(Ranks):
    """The ranks of an MPI communicator, of which rank 0 holds the server."""

    backend = "MPI"

    def __init__(self, comm: "Intracomm") -> None:
        from mpi4py import MPI

        self._mpi, self._comm = MPI, comm
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.library: str = MPI.Get_library_version().splitlines()[0].partition(",")[0]
        self._leaving = comm.Dup()  # others may be in a call of ``comm``
        self._local = comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.local_rank = self._local.Get_rank()
        # Launchers bind ranks to cores or not: one that is bound has its cores for itself.
        own = core_ids()
        self.core_sharers = sum(not own.isdisjoint(other) for other in self._local.allgather(own))

    def start(self, round_number: int | None) -> int:
        if self.rank == 0:
            for request in self._tell(round_number):
                request.wait()
            assert round_number is not None
            return round_number
        while not self._leaving.Iprobe(source=0):
            time.sleep(_POLL_SECONDS)
        told: int | None = self._leaving.recv(source=0)
        if told is None:
            raise UserError("rank 0 has ended the run")
        return told

    def wait(self) -> None:
        self._await(self._comm.Ibarrier())

    def agree(self, error: UserError | None = None) -> None:
        self.wait()
        mine = error and f"rank {self.rank} on {platform.node()}: {error}"
        said = next(filter(None, self._comm.allgather(mine)), None)
        if error or said:
            raise error or _AnotherRanksError(said)

    def least(self, number: int) -> int:
        return self._comm.allreduce(number, self._mpi.MIN)

    def sharers(self, device: str) -> int:
        return self._local.allgather(device).count(device)

    def abort(self, status: int) -> None:
        self._comm.Abort(status)

    def leave(self, status: int) -> None:
        told = self._tell(None) if self.rank == 0 else []  # kept until all have it
        all_leave, deadline = self._leaving.Ibarrier(), time.monotonic() + _HEAD_START
        while not all_leave.Test():
            if time.monotonic() > deadline:
                return
            time.sleep(_POLL_SECONDS)
        while self.rank and self._leaving.Iprobe(source=0):  # what it did not wait for
            self._leaving.recv(source=0)
        for request in told:
            request.wait()
        self._mpi.Finalize()
        os._exit(status)

    def _tell(self, number: int | None) -> "list[Request]":
        return [self._leaving.isend(number, rank) for rank in range(1, self.size)]

    def serve(self, tensors: Sequence[Tensor]) -> None:
        if not tensors:  # of a client method that sends nothing; alike on all ranks
            return
        flat = torch.cat([tensor.reshape(-1).view(torch.uint8).cpu() for tensor in tensors])
        self._await(self._comm.Ibcast(flat.numpy()))
        if self.rank:
            sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
            for tensor, content in zip(tensors, flat.split(sizes), strict=True):
                # A copy is aligned for the dtype that the bytes are of.
                tensor.copy_(content.clone().view(tensor.dtype).view(tensor.shape))

    def reduce(self, part: ClientSum) -> ClientSum | None:
        self.wait()  # open to signals, which the exchange of objects is not
        return part if part.combine(self._comm.allgather, self._sum) else None

    def share(self, thing: T) -> T:
        self.wait()
        return self._comm.bcast(thing)

    def gather(self, part: T) -> list[T]:
        self.wait()
        return self._comm.gather(part) or []

    def scatter(self, parts: Sequence[T]) -> T:
        self.wait()
        return self._comm.scatter(parts or None)

    def _sum(self, integers: Tensor) -> Tensor | None:
        """Add up int64 vectors at rank 0, in place."""
        if self.rank:
            self._comm.Reduce(integers.numpy(), None, self._mpi.SUM)
            return None
        self._comm.Reduce(self._mpi.IN_PLACE, integers.numpy(), self._mpi.SUM)
        return integers

    @staticmethod
    def _await(request: "Request") -> None:
        """Wait for the slowest rank without taking a core from it, and open to signals."""
        while not request.Test():
            time.sleep(_POLL_SECONDS)


@contextmanager
def agreed(ranks: Ranks) -> Iterator[None]:
    """Raise on all ranks where one raises a user's mistake, which may be that of its machine.

    All ranks meet here, or each where the next one of them calls ``ranks.agree``.
    """
    try:
        yield
    except _AnotherRanksError:
        raise
    except UserError as error:
        ranks.agree(error)
    ranks.agree()


def assign(groups: Sequence[Group], work: Sequence[int], ranks: int) -> list[list[Group]]:
    """Deal groups of clients, heaviest first, each to the rank with the least work so far.

    No rank then has more than 4/3 of the best possible maximum (Graham 1969). It is the same on
    every rank; in a hand the groups that run last are short.
    """
    assignment: list[list[Group]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for cost, group in sorted(zip(work, groups, strict=True), key=lambda pair: (-pair[0], pair[1])):
        least = loads.index(min(loads))
        assignment[least].append(group)
        loads[least] += cost
    return assignment


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
        raise LaunchError(
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
            stopped = isinstance(error, Terminated | KeyboardInterrupt)
            if ranks.rank and stopped:
                time.sleep(_TIME_TO_SAVE)
            elif ranks.rank and isinstance(error, UserError):
                ranks.leave(status)
            if not (ranks.rank and stopped):
                sys.stderr.write(message + "\n")
            sys.stdout.flush()
            sys.stderr.flush()
            if ranks.rank == 0 and isinstance(error, UserError):
                ranks.leave(status)
            ranks.abort(status)
        raise
