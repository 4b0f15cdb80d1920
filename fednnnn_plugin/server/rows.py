"""What is known of a round's clients: a row each, of which every statistic is made."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass
class Clients:
    """What is known of a round's clients so far.

    Attributes:
        rows: of each accepted client its weight, ``‖Δ‖``, ``‖Δ‖²`` and ``‖Δ‖`` of each module.
        non_finite: rejected for an element that is not finite, or beyond the exact range.
        failed: had no model to add.
    """

    rows: list[tuple[float, ...]] = field(default_factory=list)
    non_finite: int = 0
    failed: int = 0

    @property
    def rejected(self) -> int:
        """How many clients were not accepted."""
        return self.non_finite + self.failed

    def merge(self, other: Clients) -> None:
        """Add another part of the round's clients."""
        self.rows += other.rows
        self.non_finite += other.non_finite
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
