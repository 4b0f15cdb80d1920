"""What an MPI launcher tells a process of the job that it belongs to."""

from __future__ import annotations

import os

_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID")


def launched_ranks() -> int:
    """Return how many processes were launched together; 1 without a launcher."""
    return _first(_SIZES, 1)


def launched_rank() -> int:
    """Return which of them this one is; 0 without a launcher."""
    return _first(_RANKS, 0) if launched_ranks() > 1 else 0


def _first(names: tuple[str, ...], default: int) -> int:
    values = (os.environ.get(name, "") for name in names)
    return next((int(value) for value in values if value.isdecimal()), default)
