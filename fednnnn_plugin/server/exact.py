"""Sums that do not depend on the order of their terms.

Floating-point addition is not associative, so a sum over clients that finish in any order, on any
number of processes, would differ in its last bits. Both classes here add integers instead, which
is exact; rounding happens once per term, before it meets any other, and once at the end.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from fractions import Fraction

import torch
from torch import Tensor

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.server.norms import pieces

_UNIT = 2 * 1074  # every product of two finite doubles is a multiple of 2^-2148


class ExactSum:
    """``Σ x·y`` over finite doubles, exact; a Python integer in units of ``2^-2148``."""

    def __init__(self, units: int = 0) -> None:
        self.units = units

    def add(self, x: float, y: float = 1.0) -> None:
        """Add the exact product of two finite doubles."""
        (a, b), (c, d) = x.as_integer_ratio(), y.as_integer_ratio()
        self.units += (a * c << _UNIT) // (b * d)

    def merge(self, other: ExactSum) -> None:
        """Add another sum."""
        self.units += other.units

    def __truediv__(self, other: ExactSum) -> float:
        """Return the quotient of two sums, correctly rounded."""
        return self.units / other.units

    def as_fraction(self) -> Fraction:
        """Return the sum as an exact rational number."""
        return Fraction(self.units, 1 << _UNIT)


class FixedPointSum:
    """Order-independent ``Σ_k w_k x_k`` over vectors of ``size`` elements.

    A term with ``w·max|x| < 2^t`` goes into the *bin* ``b = ⌈t/16⌉``, an int64 vector on the grid
    ``2^(16b - 48)``: so a term is rounded once, by at most ``2^-32`` of its own largest element,
    whatever the scale of weights and updates. Integers add exactly up to ``MAX_TERMS`` terms. Only
    the three highest bins are kept; a term is dropped only below ``2^-31`` of another. Which bin
    a term enters depends on that term alone, and which are kept on the highest one: the result is
    a function of the set of terms, not of their order.

    Memory: 8 bytes an element and bin. Terms of similar scale (within ``2^16``) fill one bin or
    two neighbouring ones.
    """

    MAX_TERMS = (1 << 15) - 1  # of up to 2^48 units each: below 2^63
    KEPT_BINS = 3
    _WIDTH = 16  # binary orders of magnitude in a bin
    _BITS = 48  # of one term on its grid
    _ROUND = 1.5 * 2.0**52  # added to a double below 2^51, leaves round(x) in the low mantissa bits
    _ROUND_BITS = torch.tensor(_ROUND, dtype=torch.float64).view(torch.int64).item()

    def __init__(self, size: int, device: torch.device) -> None:
        self.size = size
        self.device = device
        self.terms = 0
        self.bins: dict[int, Tensor] = {}
        self._constants: dict[int, int] = {}  # how often _ROUND_BITS went into a bin

    def add(self, chunks: Iterator[tuple[int, Tensor]], weight: float, largest: float) -> None:
        """Add ``weight · x``.

        Args:
            chunks: pairs (offset, float64 scratch) that cover ``x``; the scratch is overwritten.
            weight: positive, finite.
            largest: ``max|x|``, finite.
        """
        self._admit(1)
        if largest == 0.0:
            return
        mantissa, exponent = math.frexp(weight)
        # Below 2^-900 the scale would overflow; such a term rounds to zero on its grid.
        top = exponent + max(math.frexp(largest)[1], -900)
        bin_ = -(-top // self._WIDTH)
        if not self._keep({bin_}):
            return
        scale = math.ldexp(mantissa, exponent + self._BITS - self._WIDTH * bin_)
        total = self.bins[bin_]
        for offset, x in chunks:
            # The sum's bits as an integer are round(x) + a constant: no slow conversion.
            bits = x.mul_(scale).add_(self._ROUND).view(torch.int64)
            total[offset : offset + len(x)].add_(bits)
        self._constants[bin_] += 1

    def merge(self, other: FixedPointSum) -> None:
        """Add another partial sum."""
        self._admit(other.terms)
        self._keep(set(other.bins))
        for bin_, total in other.bins.items():
            if bin_ in self.bins:
                self.bins[bin_].add_(total.to(self.device))
                self._constants[bin_] += other._constants[bin_]

    def mean_into(
        self,
        outputs: Iterable[Tensor],
        total_weight: ExactSum,
        exponents: Iterable[int] = itertools.repeat(0),
    ) -> None:
        """Write the sum, divided by the exact total weight, into contiguous tensors.

        Each is multiplied by two to the power of its exponent.
        """
        weight = total_weight.as_fraction()
        shift = weight.numerator.bit_length() - weight.denominator.bit_length() + 1
        divisor = float(weight / Fraction(2) ** shift)  # in [1/4, 1]: no finite mean overflows
        grids = [  # small parts first: the larger ones then round the result once
            (self.integers(bin_), self._WIDTH * bin_ - self._BITS - shift)
            for bin_ in sorted(self.bins)
        ]
        offset = 0
        for output, exponent in zip(outputs, exponents, strict=False):
            for piece in pieces(output.view(-1)):
                end = offset + len(piece)
                value = torch.zeros_like(piece, dtype=torch.float64)
                for total, grid in grids:
                    unit = math.ldexp(1.0, grid + exponent)
                    value += total[offset:end].to(torch.float64).mul_(unit)
                piece.copy_(value.div_(divisor))
                offset = end

    def integers(self, bin_: int) -> Tensor:
        """Return a bin's sum in units of its grid: int64, zero if the bin is not in use."""
        if bin_ not in self.bins:
            return torch.zeros(self.size, dtype=torch.int64, device=self.device)
        constant = self._constants[bin_] * self._ROUND_BITS
        self._constants[bin_] = 0
        # Two's complement wraps around: a multiple of 2^64 makes no difference.
        return self.bins[bin_].sub_((constant + 2**63) % 2**64 - 2**63)

    def replace(self, integers: Mapping[int, Tensor], terms: int) -> None:
        """Take over the bins of a sum of ``terms`` terms, as :meth:`integers` gives them."""
        self.terms = 0
        self._admit(terms)
        self.bins = {bin_: total.to(self.device) for bin_, total in integers.items()}
        self._constants = dict.fromkeys(integers, 0)

    @classmethod
    def kept(cls, bins: Collection[int]) -> tuple[int, ...]:
        """Return those of some bins that a sum over all of them keeps, highest first."""
        highest = max(bins, default=0)
        return tuple(sorted((b for b in bins if b > highest - cls.KEPT_BINS), reverse=True))

    def _admit(self, terms: int) -> None:
        if self.terms + terms > self.MAX_TERMS:
            raise UserError(
                f"UpdateAccumulator: {self.terms + terms} clients: at most {self.MAX_TERMS} add up "
                "exactly"
            )
        self.terms += terms

    def _keep(self, bins: set[int]) -> bool:
        """Make room for ``bins``; drop what falls below the kept ones. True if all are kept."""
        kept = self.kept(self.bins.keys() | bins)
        for bin_ in self.bins.keys() - set(kept):
            del self.bins[bin_], self._constants[bin_]
        for bin_ in bins & set(kept) - self.bins.keys():
            self.bins[bin_] = torch.zeros(self.size, dtype=torch.int64, device=self.device)
            self._constants[bin_] = 0
        return bins <= self.bins.keys()
