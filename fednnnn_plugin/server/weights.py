"""Means by weights whose sum is exact, whatever their number and size."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from fednnnn_plugin.server.sum import BinnedSum


@dataclass(frozen=True)
class Weights:
    """``a_k`` of a round's clients, one or more, each positive and finite; ``α_k = a_k / Σ a``."""

    given: tuple[float, ...]

    @property
    def exponent(self) -> int:
        """That of a power of two above the sum of the weights."""
        return max(math.frexp(weight)[1] for weight in self.given) + len(self.given).bit_length()

    def in_units(self) -> list[float]:
        """Return each ``a_k`` in units of ``2^exponent``, in which no sum overflows."""
        unit = -self.exponent
        return [math.ldexp(weight, unit) for weight in self.given]

    def shares(self) -> list[float]:
        """Return each ``α_k``."""
        weights = self.in_units()
        total = math.fsum(weights)
        return [weight / total for weight in weights]

    def mean(self, values: Iterable[float]) -> float:
        """Return ``Σ α_k x_k``. ``math.fsum`` is exact: no order of the clients changes it."""
        weights = self.in_units()
        terms = (weight * value for weight, value in zip(weights, values, strict=True))
        return math.fsum(terms) / math.fsum(weights)

    def orthogonal_norm(self, norms: Iterable[float]) -> float:
        """Return ``√(Σ α_k² ‖x_k‖²)``."""
        terms = [share * norm for share, norm in zip(self.shares(), norms, strict=True)]
        longest = max(terms) or 1.0  # in units of it no square overflows
        return longest * math.sqrt(math.fsum((term / longest) ** 2 for term in terms))

    def mean_vector(self, total: BinnedSum, dtype: torch.dtype) -> Tensor:
        """Return ``Σ α_k x_k`` of vectors whose ``Σ a_k x_k`` this is."""
        return total.total(math.fsum(self.in_units()), dtype, -self.exponent)
