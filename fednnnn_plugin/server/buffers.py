"""The buffers of a model: averaged, or the maximum, over clients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from fednnnn_plugin.server.bounds import BufferBounds
from fednnnn_plugin.server.exact import ExactSum, FixedPointSum


class BufferMean:
    """The weighted mean of the floating buffers, and the maximum of the others.

    Buffers differ in scale (an attention mask of -1e9 beside a running variance of 0.01), and a
    sum rounds its terms on one grid: each buffer is taken in units of the power of two above its
    largest element in the global state, which every process knows.

    Args:
        like: the global buffers.
        device: where the sum is kept.
    """

    def __init__(self, like: Mapping[str, Tensor], device: torch.device) -> None:
        self._like = like
        # Within bounds that keep the unit, and a finite buffer in it, in the range of a double.
        floating = {name: tensor for name, tensor in like.items() if tensor.is_floating_point()}
        self.exponents = {
            name: min(max(math.frexp(largest)[1], -64), 1000)
            for name, largest in zip(floating, _largest(floating.values()), strict=True)
        }
        self.sum = FixedPointSum(sum(like[name].numel() for name in self.exponents), device)
        self.bounds = BufferBounds(like, list(self.exponents))

    def largest(self, state: Mapping[str, Tensor]) -> float:
        """Return the largest element in its unit: not finite where one is not.

        That is in the dtype of the mean, in which a wider client may overflow.
        """
        largest = _largest(state[name].to(self._like[name].dtype) for name in self.exponents)
        units = [
            x * math.ldexp(1.0, -exponent)
            for x, exponent in zip(largest, self.exponents.values(), strict=True)
        ]
        return max(units, default=0.0) if all(map(math.isfinite, units)) else math.inf

    def add(self, state: Mapping[str, Tensor], weight: float, largest: float) -> None:
        """Add one client's buffers, given their :meth:`largest`."""
        self.sum.add(self._chunks(state), weight, largest)
        self.bounds.add(state)

    def merge(self, other: BufferMean) -> None:
        """Add another mean over the same global buffers."""
        self.sum.merge(other.sum)
        self.bounds.merge(other.bounds)

    def finish(self, total_weight: ExactSum) -> dict[str, Tensor]:
        """Return the buffers, each element between the clients' minimum and maximum."""
        averages = {
            name: torch.empty_like(self._like[name], memory_format=torch.contiguous_format)
            for name in self.exponents
        }
        self.sum.mean_into(averages.values(), total_weight, self.exponents.values())
        for name, average in averages.items():
            average.clamp_(self.bounds.lowest[name], self.bounds.highest[name])
        return {
            name: averages[name] if name in averages else highest.clone()
            for name, highest in self.bounds.highest.items()
        }

    def _chunks(self, state: Mapping[str, Tensor]) -> Iterator[tuple[int, Tensor]]:
        offset = 0
        for name, exponent in self.exponents.items():
            values = state[name].detach().reshape(-1)
            doubles = values.to(self.sum.device, torch.float64, copy=True)
            yield offset, doubles.mul_(math.ldexp(1.0, -exponent))
            offset += len(values)


def _largest(tensors: Iterable[Tensor]) -> list[float]:
    """Return ``max|x|`` of each tensor; NaN where there is one."""
    maxima = [
        # Not the infinity norm, which is ten times slower.
        torch.stack(tensor.detach().aminmax()).abs().max().to(torch.float64)
        if tensor.numel()
        else tensor.new_zeros((), dtype=torch.float64)
        for tensor in tensors
    ]
    return torch.stack(maxima).tolist() if maxima else []  # one wait for an accelerator
