"""A weighted sum of vectors that does not depend on the order of its terms.

Floating-point addition is not associative, so a sum over clients that finish in any order, on any
number of processes, would differ in its last bits. Here each term is first rounded to a grid that
it chooses by itself, and integers are added, which is exact: binned summation after Demmel and
Nguyen, "Parallel Reproducible Summation", IEEE Transactions on Computers 64 (7), 2015.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fednnnn_plugin.server.transfer import to_device
from fednnnn_plugin.user_code import on_threads


def pieces(size: int, device: torch.device) -> Iterator[slice]:
    """Yield the slices in which a vector is handled: on a CPU they fit its caches.

    Each on one thread: where other work has a core, several wait for each other after every
    operation, ten times as long as they compute.
    """
    length = 131_072 if device.type == "cpu" else max(size, 1)
    with on_threads(1):
        for start in range(0, max(size, 1), length):
            yield slice(start, min(start + length, size))


class Term(NamedTuple):
    """A row's factor, by mantissa and exponent as of ``math.frexp``; a bound of |x| · mantissa."""

    mantissa: float
    exponent: int
    bound: float

    @classmethod
    def of(cls, weight: float, factor: float, largest: float) -> "Term":
        """Return that of ``weight · factor · x`` with elements up to ``largest``."""
        mantissa, exponent = math.frexp(weight)
        return cls(mantissa * factor, exponent, mantissa * factor * largest)


def _column(factors: Sequence[float], device: torch.device) -> Tensor:
    return to_device(torch.tensor(factors, dtype=torch.float64), device).unsqueeze(1)


class BinnedSum:
    """``Σ_k f_k x_k`` over vectors of ``size`` elements: the same bits in any order.

    A term with ``f·max|x| < 2^(8b)`` goes into *bin* b, an int64 vector on the grid
    ``2^(8b - 48)``: it is rounded once, by at most ``2^-41`` of the bound that the caller gives.
    What rounding leaves may be added to lower bins (``folds``), 48 bits finer each. Integers add
    exactly up to ``MAX_TERMS`` terms. A bin is dropped where it lies below ``2^-48`` of a term for
    each fold. Which bins a term enters depends on that term alone, and which are kept on the
    highest one: the result is a function of the set of terms.

    Memory: 8 bytes an element and bin; terms within ``2^8`` of each other fill one bin or two.
    """

    MAX_TERMS = (1 << 15) - 1  # of up to 2^48 units each: below 2^63
    _WIDTH = 8  # binary orders of magnitude in a bin
    _BITS = 48  # of one term on its grid
    _ROUND = 1.5 * 2.0**52  # added to a double below 2^51, leaves round(x) in the low mantissa bits
    _ROUND_BITS = torch.tensor(_ROUND, dtype=torch.float64).view(torch.int64).item()

    def __init__(self, size: int, device: torch.device, folds: int) -> None:
        self._size = size
        self._device = device
        self._kept = folds * self._BITS // self._WIDTH + 1
        self._sums: dict[int, Tensor] = {}
        self._uncorrected = Counter[int]()  # how often _ROUND_BITS is in each sum

    @property
    def bins(self) -> dict[int, Tensor]:
        """Each bin's sum in units of its grid, highest bin first: int64 ``[size]``."""
        for bin_, total in self._sums.items():
            if count := self._uncorrected.pop(bin_, 0):
                # Two's complement wraps around: a multiple of 2^64 makes no difference.
                total.sub_((count * self._ROUND_BITS + 2**63) % 2**64 - 2**63)
        return self._sums

    def add(self, rows: Tensor, terms: Sequence[Term], folds: int) -> None:
        """Add finite rows ``[m, size]`` on one grid, each times a positive factor."""
        # Below 2^-900 the scale would overflow; such a term rounds to zero on its grid.
        tops = [t.exponent + max(math.frexp(t.bound)[1], -900) for t in terms if t.bound]
        if not tops:
            return
        highest = -(-max(tops) // self._WIDTH)
        bins = [highest - fold * self._BITS // self._WIDTH for fold in range(folds)]
        self.align(bins)
        exponent = self._BITS - self._WIDTH * highest
        scales = [  # a row of zeros may have any factor
            math.ldexp(t.mantissa, t.exponent + exponent) if t.bound else 0.0 for t in terms
        ]
        alone = len(rows) == 1
        column = scales[0] if alone else _column(scales, rows.device)
        # A group takes a number of operations that does not depend on its size.
        for where in pieces(self._size, rows.device) if alone else [slice(0, self._size)]:
            # In units of the first bin's grid.
            x = rows[:, where].to(torch.float64, copy=True).mul_(column)
            for bin_ in bins:
                last = bin_ == bins[-1]
                shifted = x.add_(self._ROUND) if last else x + self._ROUND
                # Its bits, as an integer, are round(x) + _ROUND_BITS: no slow conversion.
                bits = shifted.view(torch.int64)
                if bin_ in self._sums:
                    self._sums[bin_][where].add_(bits[0] if alone else bits.sum(0))
                if not last:
                    x = x.sub_(shifted.sub_(self._ROUND)).mul_(2.0**self._BITS)
        self._uncorrected.update(dict.fromkeys(bins, len(rows)))

    def merge(self, other: "BinnedSum") -> None:
        """Add another partial sum."""
        self.align(other.bins)
        for bin_ in self._sums.keys() & other.bins.keys():
            self._sums[bin_].add_(other.bins[bin_].to(self._device))

    def align(self, bins: Collection[int]) -> None:
        """Have all bins that a sum over these and its own keeps; drop those that fall below."""
        every = {*self._sums, *bins}
        kept = sorted((bin_ for bin_ in every if bin_ > max(every) - self._kept), reverse=True)
        with torch.inference_mode(False):  # else what adds later could not write to them
            for bin_ in set(kept) - self._sums.keys():
                self._sums[bin_] = torch.zeros(self._size, dtype=torch.int64, device=self._device)
        self._sums = {bin_: self._sums[bin_] for bin_ in kept}

    def total(self, divisor: float, dtype: torch.dtype, exponent: int = 0) -> Tensor:
        """Return ``2^exponent · Σ_k f_k x_k / divisor`` as a vector ``[size]`` of ``dtype``.

        It does not overflow if ``divisor`` is ``2^exponent · Σ_k f_k`` and at most 1.
        """
        result = torch.empty(self._size, dtype=dtype, device=self._device)
        largest = torch.finfo(dtype).max  # which rounding may pass
        exponent -= self._BITS
        for where in pieces(self._size, self._device):
            value = torch.zeros_like(result[where], dtype=torch.float64)
            for bin_, integers in reversed(self.bins.items()):  # the larger then round the result
                unit = math.ldexp(1.0, self._WIDTH * bin_ + exponent)
                value += integers[where].to(torch.float64).mul_(unit)
            result[where] = value.div_(divisor).clamp_(-largest, largest)
        return result
