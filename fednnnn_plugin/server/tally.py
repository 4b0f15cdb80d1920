"""The scalars of a round: weights, norms and counts of the clients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fednnnn_plugin.server.exact import ExactSum
from fednnnn_plugin.server.norms import by_module


@dataclass
class ClientTally:
    """Exact sums over the accepted clients, their norms, and how many were not accepted.

    Attributes:
        layer_norms: ``Σ a_k ‖Δ_k‖₂`` of each module.
        weight: ``Σ a_k``.
        norm: ``Σ a_k ‖Δ_k‖₂`` of the whole model.
        square: ``Σ a_k ‖Δ_k‖₂²``.
        norms: ``‖Δ_k‖₂`` of each accepted client, in no order.
        non_finite: rejected for an element that is not finite, or beyond the exact range.
        failed: had no model to add.
    """

    layer_norms: dict[str, ExactSum]
    weight: ExactSum = field(default_factory=ExactSum)
    norm: ExactSum = field(default_factory=ExactSum)
    square: ExactSum = field(default_factory=ExactSum)
    norms: list[float] = field(default_factory=list)
    non_finite: int = 0
    failed: int = 0

    @classmethod
    def of(cls, modules: Iterable[str]) -> ClientTally:
        """Start at zero for these modules."""
        return cls({module: ExactSum() for module in modules})

    @property
    def rejected(self) -> int:
        """How many clients were not accepted."""
        return self.non_finite + self.failed

    def add(self, squares: Mapping[str, float], weight: float, shrink: float) -> None:
        """Count a client by the squared norms of its parameters' updates, shrunk by a factor."""
        square = sum(squares.values())
        norm = math.sqrt(square) * shrink
        self.weight.add(weight)
        self.norm.add(norm, weight)
        self.square.add(square * shrink**2, weight)
        self.norms.append(norm)
        for module, layer_norm in by_module(squares).items():
            self.layer_norms[module].add(layer_norm * shrink, weight)

    def merge(self, other: ClientTally) -> None:
        """Add another tally of the same modules."""
        self.weight.merge(other.weight)
        self.norm.merge(other.norm)
        self.square.merge(other.square)
        self.norms.extend(other.norms)
        self.non_finite += other.non_finite
        self.failed += other.failed
        for module, total in other.layer_norms.items():
            self.layer_norms[module].merge(total)
