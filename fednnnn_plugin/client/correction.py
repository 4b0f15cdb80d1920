"""What a client method changes in the steps of a group."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from fednnnn_plugin.client.method import GradientAt


class StepGradient(Protocol):
    """A method's gradients of a step, for clients that are neighbours in a group."""

    def __call__(
        self, weights: Tensor, gradient_at: GradientAt, number: Tensor, *, first: int = 0
    ) -> Tensor:
        """Return g, ``[m, d]``, at the weights ``[m, d]``.

        ``number`` ``[m, 1]`` is each one's step, from 0; ``first`` the row of the first in the
        group.
        """


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
