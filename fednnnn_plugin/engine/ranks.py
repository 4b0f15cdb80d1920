"""The processes that share a round's clients, and what their launcher says of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

from fednnnn_plugin.client.groups import Group
from fednnnn_plugin.server.average import UpdateAccumulator
from fednnnn_plugin.server.layout import ModelState

_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID")


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


def heaviest_first(groups: Sequence[Group], work: Sequence[int]) -> list[Group]:
    """Sort groups by falling work, equal ones by their clients."""
    cost = dict(zip(groups, work, strict=True))
    return sorted(groups, key=lambda group: (-cost[group], group))


def launched_ranks() -> int:
    """Return how many processes were launched together; 1 without a launcher."""
    return _first(_SIZES, 1)


def launched_rank() -> int:
    """Return which of them this one is; 0 without a launcher."""
    return _first(_RANKS, 0) if launched_ranks() > 1 else 0


def _first(names: tuple[str, ...], default: int) -> int:
    values = (os.environ.get(name, "") for name in names)
    return next((int(value) for value in values if value.isdecimal()), default)
