"""What is known of a round's clients: a row each, of which every statistic is made."""

import math
from dataclasses import dataclass, field

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.server.sum import BinnedSum


@dataclass
class Clients:
    """The clients so far: a row of each accepted one, how many were not, and had no model at all.

    A row is the weight, ``‖Δ‖``, ``‖Δ‖²`` and ``‖Δ‖`` of each module.
    """

    rows: list[tuple[float, ...]] = field(default_factory=list)
    rejected: int = 0
    failed: int = 0

    def merge(self, other: "Clients") -> None:
        """Add others, if all of them add up exactly."""
        count, most = len(self.rows) + len(other.rows), BinnedSum.MAX_TERMS
        if count > most:
            raise UserError(f"UpdateAccumulator: {count} clients: at most {most} add up exactly")
        self.rows += other.rows
        self.rejected += other.rejected
        self.failed += other.failed

    def exponent(self) -> int:
        """Return that of a power of two above the sum of the weights."""
        return max(math.frexp(row[0])[1] for row in self.rows) + len(self.rows).bit_length()

    def weighted(self, column: int | None = None) -> float:
        """Return ``Σ a_k x_k`` of a column, or ``Σ a_k``, in units of ``2^exponent``.

        In these no sum overflows. ``math.fsum`` is exact: no order of the rows changes it.
        """
        unit = -self.exponent()
        return math.fsum(
            math.ldexp(row[0], unit) * (1.0 if column is None else row[column]) for row in self.rows
        )
