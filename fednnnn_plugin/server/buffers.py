"""What is not trained: averages of floating entries as they are, and maxima of integers."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import torch
from torch import Tensor

from fednnnn_plugin.server.layout import Block, Entry, Layout, State
from fednnnn_plugin.server.norms import part_norms
from fednnnn_plugin.server.sum import BinnedSum, Term
from fednnnn_plugin.server.weights import Weights

# A client's buffers differ in scale: an attention mask of -1e9 beside a running variance of 0.01;
# where one is beyond _HUGE, float32's least number counts beside it.
_FOLDS, _HUGE_FOLDS, _HUGE = 3, 6, 1e12
#: By how much a count may grow in a round: 2^31 such rounds are what int64 holds.
LARGEST_STEP = 1 << 32
_VARIANCE = "running_var"


class Moved(Block):
    """Floating entries that clients may have moved: ``start`` ``[n]`` is ``w_t``'s, float64."""

    def __init__(self, w_t: State, names: Iterable[str], device: torch.device) -> None:
        super().__init__(w_t, names, torch.float64)
        self.start = self.flatten(w_t).to(device)
        #: What an element must be at least.
        self.least = torch.full_like(self.start, -math.inf)
        for entry in self.entries:
            if entry.name.rpartition(".")[2] == _VARIANCE:
                self.least[entry.where] = 0.0


@dataclass(frozen=True)
class Rows:
    """The buffers of m clients.

    ``floating`` ``[m, n]`` has the entries that may have moved, ``integer`` ``[m, n']`` all.
    """

    moved: Moved
    floating: Tensor
    integer: Tensor

    def take(self, clients: Tensor | slice) -> "Rows":
        """Return some of the clients."""
        return Rows(self.moved, self.floating[clients], self.integer[clients])


class BufferSum:
    """Adds the clients' buffers, frozen parameters included, exactly and in any order.

    A floating entry that no client changed takes no memory; where some changed it, the others count
    with that of ``w_t``. ``longest`` is what ``‖b_k - b_t‖₂`` may be, of all floating entries of a
    client together.
    """

    def __init__(self, layout: Layout, w_t: State, device: torch.device, longest: float) -> None:
        self._layout, self._device, self._longest = layout, device, longest
        self._w_t = {name: tensor.to(device) for name, tensor in w_t.items()}
        self._start = layout.integer.flatten(self._w_t).to(device)
        wide = torch.zeros(layout.integer.size, dtype=torch.bool)
        for entry in layout.integer.entries:
            wide[entry.where] = layout.forms[entry.name][1] == torch.int64
        self._counts = wide.to(device) & (self._start >= 0)
        #: Of each entry, the sum over the clients who moved it, and the weight that it holds: what
        #: lacks to all clients' weight is of ``w_t``.
        self.sums: dict[str, BinnedSum] = {}
        self.weights: dict[str, Fraction] = {}
        least = torch.iinfo(torch.int64).min
        self.maxima = torch.full((layout.integer.size,), least, device=device)

    @cached_property
    def _whole(self) -> Moved:
        return Moved(self._w_t, [e.name for e in self._layout.floating.entries], self._device)

    def read(self, buffers: State, m: int) -> tuple[Rows, Tensor]:
        """Return the buffers of m clients ``[m, …]``, corrected, and what is measured of them.

        A variance below 0 becomes 0; a count below 0, or that has grown by more than a round can
        have it grow, becomes that of ``w_t``; a longer change of the floating entries is clipped.
        The measures ``[m, 3]`` are of each client a bound of its floating entries, given and
        corrected, ``‖b_k - b_t‖₂`` where that is limited, and whether a variance or a count was
        replaced.

        One client may lack some. Of a group all may have moved: to find out is to wait for a GPU.
        """
        layout, w_t = self._layout, self._w_t
        given = {name: buffers.get(name, w_t[name]).to(self._device) for name in layout.buffers}
        entries = layout.floating.entries
        differ = [(given[e.name].reshape(e.shape) != w_t[e.name]).any() for e in entries if m == 1]
        moves = torch.stack(differ).tolist() if differ else [True] * len(entries)  # one wait
        names = [e.name for e, moved in zip(entries, moves, strict=True) if moved]
        if not layout.buffers:
            nothing = torch.empty(m, 0, device=self._device)
            return Rows(self._whole, nothing, nothing.long()), nothing.new_zeros(m, 3)
        whole = len(names) == len(entries)
        moved = self._whole if whole else Moved(w_t, names, self._device)
        floating = moved.flatten(given, models=(m,)).to(self._device)
        integer = layout.integer.flatten(given, models=(m,)).to(self._device)
        # FedML's local noise may leave counts below 0; the difference to one may overflow.
        strange = self._counts & ((integer < 0) | (integer - self._start > LARGEST_STEP))
        raised = floating.clamp(min=moved.least)
        replaced = (raised != floating).any(1, keepdim=True) | strange.any(1, keepdim=True)
        clipped, change = self._clipped(raised, moved.start)
        columns = [torch.maximum(_peaks(floating), _peaks(clipped)), change, replaced]
        rows = Rows(moved, clipped, torch.where(strange, self._start, integer))
        return rows, torch.cat([column.double() for column in columns], 1)

    def _clipped(self, rows: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """Return floating entries ``[m, n]`` not too far from ``start``, and how far they were."""
        if self._longest == math.inf:
            return rows, rows.new_zeros(len(rows), 1)
        change = rows - start
        norm = part_norms(change, {"": slice(0, len(start))})
        nearer = start + change * (self._longest / norm)
        return torch.where(norm > self._longest, nearer, rows), norm

    def add(self, rows: Rows, weights: Sequence[float], peaks: Sequence[float]) -> None:
        """Add accepted clients; ``peaks`` are bounds of their floating entries."""
        terms = [Term.of(weight, 1.0, peak) for weight, peak in zip(weights, peaks, strict=True)]
        together = sum(map(Fraction, weights), Fraction())
        folds = _HUGE_FOLDS if max(peaks) > _HUGE else _FOLDS
        for entry in rows.moved.entries:
            self._sum_of(entry.name).add(rows.floating[:, entry.where], terms, folds)
            self.weights[entry.name] += together
        self.maxima = torch.maximum(self.maxima, rows.integer.amax(0))

    def merge(self, other: "BufferSum") -> None:
        """Add another partial sum."""
        for name, total in other.sums.items():
            self._sum_of(name).merge(total)
            self.weights[name] += other.weights[name]
        self.maxima = torch.maximum(self.maxima, other.maxima.to(self._device))

    def become(self, weights: Sequence[dict[str, Fraction]], maxima: Sequence[list[int]]) -> None:
        """Take the weights and the maxima of several parts; have a sum of all that they moved."""
        names = [entry.name for entry in self._layout.floating.entries]
        names = [name for name in names if any(name in part for part in weights)]
        self.sums = {name: self._sum_of(name) for name in names}  # in one order everywhere
        nothing = Fraction()
        self.weights = {
            name: sum((part.get(name, nothing) for part in weights), nothing) for name in names
        }
        self.maxima = torch.tensor(maxima, dtype=torch.int64).amax(0).to(self._device)

    def mean(self, weights: Weights) -> dict[str, Tensor]:
        """Return the weighted average, or the maximum, of every buffer, in its own dtype."""
        found = self._layout.integer.views(self.maxima)
        every = sum(map(Fraction, weights.given), Fraction())
        found |= {e.name: self._mean(e, every, weights) for e in self._layout.floating.entries}
        forms = self._layout.forms
        return {name: found[name].to(forms[name][1], copy=True) for name in self._layout.buffers}

    def _mean(self, entry: Entry, every: Fraction, weights: Weights) -> Tensor:
        """Return the average of an entry; ``every`` is the weight of all clients."""
        start = self._w_t[entry.name]
        if entry.name not in self.sums:
            return start
        total = BinnedSum(entry.shape.numel(), self._device, _HUGE_FOLDS)
        total.merge(self.sums[entry.name])
        if still := every - self.weights[entry.name]:  # of clients who did not move it
            row, exponent = start.reshape(1, -1), weights.exponent
            share, peak = float(still / Fraction(2) ** exponent), float(_peaks(row))
            folds = _HUGE_FOLDS if peak > _HUGE else _FOLDS
            total.add(row, [Term(share, exponent, share * peak)], folds)
        return weights.mean_vector(total, torch.float64).view(entry.shape)

    def _sum_of(self, name: str) -> BinnedSum:
        if name not in self.sums:
            self.sums[name] = BinnedSum(self._w_t[name].numel(), self._device, _HUGE_FOLDS)
            self.weights[name] = Fraction()
        return self.sums[name]


def _peaks(rows: Tensor) -> Tensor:
    """Return the largest magnitude ``[m, 1]`` in each row, 0 of nothing."""
    return rows.abs().amax(1, keepdim=True) if rows.shape[1] else rows.sum(1, keepdim=True)
