"""Testing a model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fednnnn_plugin.engine.batches import Batch


@dataclass(frozen=True)
class Tally:
    """What the test of some labels adds up to: correct ones, summed loss, how many."""

    correct: int
    loss: float
    samples: int


@dataclass(frozen=True)
class Evaluation:
    """Accuracy in [0, 1] and mean cross-entropy in nats (None where it is not finite).

    Of a trainer of the user's that measures something else ``metrics`` is what it measured, by its
    own names, and the others are None.
    """

    accuracy: float | None
    loss: float | None
    metrics: Mapping[str, float] | None = None


@torch.no_grad()
def tally(model: nn.Module, batch: Batch) -> Tally:
    """Test one batch; the model is in evaluation mode."""
    inputs, labels = batch
    if inputs.is_floating_point():
        inputs = inputs.to(next(model.parameters()).dtype)
    logits: Tensor = model(inputs)
    loss = F.cross_entropy(logits.double(), labels, reduction="sum")
    return Tally(int((logits.argmax(1) == labels).sum()), float(loss), labels.numel())


def evaluation(tallies: Iterable[Tally]) -> Evaluation:
    """Add up tallies in their order."""
    parts = list(tallies)
    samples = sum(part.samples for part in parts)
    if not samples:
        return Evaluation(0.0, None)
    loss = sum(part.loss for part in parts) / samples
    accuracy = sum(part.correct for part in parts) / samples
    return Evaluation(accuracy, loss if math.isfinite(loss) else None)
