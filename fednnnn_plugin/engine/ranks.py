"""The processes that share a round's clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from fednnnn_plugin.engine.grouping import Group
from fednnnn_plugin.server.accumulator import UpdateAccumulator


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

    def abort(self, status: int) -> None:
        """End the processes of the other ranks, and this one."""

    def serve(self, state: Mapping[str, Tensor]) -> None:
        """Overwrite ``state`` with rank 0's."""

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

    def abort(self, status: int) -> None:
        """Leave it to the caller to end: there are no others."""

    def serve(self, state: Mapping[str, Tensor]) -> None:
        """Leave the state as it is."""

    def deal(self, groups: Sequence[Group], work: Sequence[int]) -> list[Group]:
        """Return all groups, heaviest first: the last ones to run are then short."""
        return heaviest_first(groups, work)

    def reduce(self, part: UpdateAccumulator) -> UpdateAccumulator:
        """Return the part."""
        return part


def heaviest_first(groups: Sequence[Group], work: Sequence[int]) -> list[Group]:
    """Sort groups by falling work, equal ones by their clients."""
    cost = dict(zip(groups, work, strict=True))
    return sorted(groups, key=lambda group: (-cost[group], group))
