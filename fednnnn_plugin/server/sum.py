"""A weighted sum of vectors that does not depend on the order of its terms.

Floating-point addition is not associative, so a sum over clients that finish in any order, on any
number of processes, would differ in its last bits. Here each term is first rounded to a grid that
it chooses by itself, and integers are added, which is exact: binned summation after Demmel and
Nguyen, "Parallel Reproducible Summation", IEEE Transactions on Computers 64 (7), 2015.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from fednnnn_plugin.errors import UserError

#: Elements of a vector handled at a time on a CPU, so that scratch stays in its caches.
_PIECE = 131_072


class BinnedSum:
    """``Σ_k f_k x_k`` over vectors of ``size`` elements: the same bits in any order.

    A term with ``f·max|x| < 2^(8b)`` goes into *bin* b, an int64 vector on the grid
    ``2^(8b - 48)``: it is rounded once, by at most ``2^-41`` of the bound that the caller gives.
    What rounding leaves may be added to lower bins (``folds``), 48 bits finer each. Integers add
    exactly up to ``MAX_TERMS`` terms. A bin is dropped where it lies below ``2^-48`` of a term for
    each fold. Which bins a term enters depends on that term alone, and which are kept on the
    highest one: the result is a function of the set of terms.

    Memory: 8 bytes an element and bin; terms within ``2^8`` of each other fill one bin or two.

    Args:
        size: of the vectors.
        device: where the sums are kept.
        folds: as many as any term is added with.
    """

    MAX_TERMS = (1 << 15) - 1  # of up to 2^48 units each: below 2^63
    _WIDTH = 8  # binary orders of magnitude in a bin
    _BITS = 48  # of one term on its grid
    _ROUND = 1.5 * 2.0**52  # added to a double below 2^51, leaves round(x) in the low mantissa bits
    _ROUND_BITS = torch.tensor(_ROUND, dtype=torch.float64).view(torch.int64).item()

    def __init__(self, size: int, device: torch.device, folds: int = 1) -> None:
        self.size = size
        self.device = device
        self._kept = folds * self._BITS // self._WIDTH + 1
        self.terms = 0
        self._sums: dict[int, Tensor] = {}
        self._shares: dict[int, int] = {}  # how often _ROUND_BITS is in each of them

    @property
    def bins(self) -> list[int]:
        """The bins in use, highest first."""
        return sorted(self._sums, reverse=True)

    def add(
        self,
        rows: Tensor,
        factors: Sequence[tuple[float, int]],
        bounds: Sequence[float],
        folds: int = 1,
    ) -> None:
        """Add rows ``[m, size]``, row k times ``factors[k]``, on one grid.

        Args:
            rows: finite; ``size`` elements each.
            factors: positive, as ``math.frexp`` gives them: mantissa and exponent of two.
            bounds: of each row's ``|x|`` times its mantissa; finite.
            folds: how often what rounding leaves is added, too.
        """
        self.admit(len(factors))
        tops = [
            # Below 2^-900 the scale would overflow; such a term rounds to zero on its grid.
            factor[1] + max(math.frexp(bound)[1], -900)
            for factor, bound in zip(factors, bounds, strict=True)
            if bound
        ]
        if not tops:
            return
        highest = -(-max(tops) // self._WIDTH)
        step = self._BITS // self._WIDTH
        bins = [highest - fold * step for fold in range(folds)]
        self._make_room(bins)
        exponent = self._BITS - self._WIDTH * highest
        scales = [  # a row of zeros may have any factor
            math.ldexp(mantissa, own + exponent) if bound else 0.0
            for (mantissa, own), bound in zip(factors, bounds, strict=True)
        ]
        if len(rows) == 1 and rows.device.type == "cpu":
            scratch = torch.empty(min(self.size, _PIECE), dtype=torch.float64, device=self.device)
            for start in range(0, self.size, len(scratch)):
                part = rows[0, start : start + len(scratch)]
                x = scratch[: len(part)].copy_(part).mul_(scales[0])
                self._add_to(bins, x, slice(start, start + len(part)))
        else:
            column = torch.tensor(scales, dtype=torch.float64).to(rows.device).unsqueeze(1)
            self._add_to(bins, rows * column, slice(None))
        for bin_ in self._shares.keys() & set(bins):
            self._shares[bin_] += len(rows)

    def _add_to(self, bins: Sequence[int], x: Tensor, where: slice) -> None:
        """Add scratch in units of the first bin's grid, ``[piece]`` or ``[m, piece]``."""
        for fold, bin_ in enumerate(bins):
            last = fold == len(bins) - 1
            shifted = x.add_(self._ROUND) if last else x + self._ROUND
            # Its bits, as an integer, are round(x) + _ROUND_BITS: no slow conversion.
            bits = shifted.view(torch.int64)
            if bin_ in self._sums:
                self._sums[bin_][where].add_(bits if x.ndim == 1 else bits.sum(0))
            if not last:
                x = x.sub_(shifted.sub_(self._ROUND)).mul_(2.0**self._BITS)

    def merge(self, other: BinnedSum) -> None:
        """Add another partial sum."""
        self.admit(other.terms)
        self._make_room(other.bins)
        for bin_ in self._sums.keys() & set(other.bins):
            self._sums[bin_].add_(other._sums[bin_].to(self.device))
            self._shares[bin_] += other._shares[bin_]

    def admit(self, terms: int) -> None:
        """Count terms.

        Raises:
            UserError: more than ``MAX_TERMS`` of them.
        """
        if self.terms + terms > self.MAX_TERMS:
            raise UserError(
                f"UpdateAccumulator: {self.terms + terms} clients: at most {self.MAX_TERMS} add up "
                "exactly"
            )
        self.terms += terms

    def kept(self, bins: Collection[int]) -> list[int]:
        """Return those of some bins that a sum over all of them keeps, highest first."""
        highest = max(bins, default=0)
        return sorted((b for b in bins if b > highest - self._kept), reverse=True)

    def integers(self, bin_: int) -> Tensor:
        """Return a bin's sum in units of its grid: int64 ``[size]``, 0 if it is not in use."""
        if bin_ not in self._sums:
            return torch.zeros(self.size, dtype=torch.int64, device=self.device)
        share = self._shares[bin_] * self._ROUND_BITS
        self._shares[bin_] = 0
        # Two's complement wraps around: a multiple of 2^64 makes no difference.
        return self._sums[bin_].sub_((share + 2**63) % 2**64 - 2**63)

    def replace(self, sums: Mapping[int, Tensor], terms: int) -> None:
        """Take over the bins of a sum of ``terms`` terms, as :meth:`integers` gives them."""
        self.terms = 0
        self.admit(terms)
        self._sums = {bin_: total.to(self.device) for bin_, total in sums.items()}
        self._shares = dict.fromkeys(sums, 0)

    def total(self, divisor: float, dtype: torch.dtype, exponent: int = 0) -> Tensor:
        """Return ``2^exponent · Σ_k f_k x_k / divisor`` as a vector ``[size]`` of ``dtype``."""
        result = torch.empty(self.size, dtype=dtype, device=self.device)
        # The sum of the largest doubles overflows; their mean does not, but for rounding.
        divisor, shift = math.frexp(divisor)
        largest = torch.finfo(dtype).max
        exponent -= self._BITS + shift
        grids = [  # small parts first: the larger ones then round the result
            (self.integers(bin_), math.ldexp(1.0, self._WIDTH * bin_ + exponent))
            for bin_ in sorted(self._sums)
        ]
        length = _PIECE if self.device.type == "cpu" else max(self.size, 1)
        for start in range(0, self.size, length):
            piece = slice(start, start + length)
            value = torch.zeros_like(result[piece], dtype=torch.float64)
            for integers, unit in grids:
                value += integers[piece].to(torch.float64).mul_(unit)
            result[piece] = value.div_(divisor).clamp_(-largest, largest)
        return result

    def _make_room(self, bins: Collection[int]) -> None:
        """Start the bins that are kept; drop those that fall below."""
        kept = set(self.kept(self._sums.keys() | set(bins)))
        for bin_ in self._sums.keys() - kept:
            del self._sums[bin_], self._shares[bin_]
        for bin_ in kept - self._sums.keys():
            self._sums[bin_] = torch.zeros(self.size, dtype=torch.int64, device=self.device)
            self._shares[bin_] = 0
