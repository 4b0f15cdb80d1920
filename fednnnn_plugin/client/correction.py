"""What a client method changes in the steps of a group."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from fednnnn_plugin.client.method import GradientAt

#: Returns a method's g, ``[m, d]``, of the first m clients of a group, from their weights
#: ``[m, d]``, what computes the gradients of the loss, and the step of each, from 0, ``[m, 1]``.
StepGradient = Callable[[Tensor, GradientAt, Tensor], Tensor]


@dataclass(frozen=True)
class Correction:
    """h, ``[m, d]``, which is added to each gradient of a round, and g; None changes nothing."""

    added: Tensor | None = None
    gradient: StepGradient | None = None


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
