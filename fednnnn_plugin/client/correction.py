"""What a client method changes in the steps of a group."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fednnnn_plugin.client.method import GradientAt

#: Returns g of a step, ``[m, d]``, of clients that are neighbours in a group, from their weights
#: ``[m, d]``, `GradientAt` and the number of each one's step, ``[m, 1]`` from 0; the keyword
#: ``first`` is the row of the first in the group, by default 0.
StepGradient = Callable[..., Tensor]


@dataclass(frozen=True)
class Correction:
    """h, ``[m, d]``, which is added to each gradient of a round, and g; None changes nothing."""

    added: Tensor | None = None
    gradient: StepGradient | None = None

    def row(self, place: int) -> "Correction":
        """Return that of one client of the group."""
        gradient = self.gradient and partial(self.gradient, first=place)
        return Correction(None if self.added is None else self.added[place : place + 1], gradient)


def step_gradients(gradient_at: GradientAt, buffers: Callable[[], Iterable[Tensor]]) -> GradientAt:
    """Return what computes the gradients of one step; the buffers are those after the first."""
    computed = 0

    def at(points: Tensor) -> Tensor:
        nonlocal computed
        computed += 1
        kept = [each.clone() for each in buffers()] if computed > 1 else []
        with torch.enable_grad():
            found = gradient_at(points)
        for each, before in zip(buffers(), kept, strict=False):  # a model may make new ones
            each.copy_(before)
        return found

    return at
