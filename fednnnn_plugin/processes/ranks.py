"""The processes that share a round's clients: this one alone, or MPI's ranks.

With many processes no collective is a client's, but those of a client method that keeps something
at its clients: by ``scatter`` rank 0 hands out what they kept, and by ``gather`` it gets it back.

1. ``broadcast``: rank 0 sends the served model and what a client method sends beside it, and by
   ``broadcast_object`` what a user's sampler drew.
2. ``reduce``: all exchange what they know of their clients, a row each, and which bins their sums
   use; then the int64 sums are added up at rank 0, exactly.
3. Where a model is tested, ``broadcast`` and ``gather``: each rank tests it on some of the batches.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from torch import Tensor

from fednnnn_plugin.errors import UserError


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
