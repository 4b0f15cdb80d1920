"""Testing a model."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fednnnn_plugin.engine.batches import Batch

_IGNORED = -100


@dataclass(frozen=True)
class Tally:
    """What a test adds up to: correct labels, summed loss, and how many labels there were.

    A sample has several where the model labels each word or pixel.
    """

    correct: int
    loss: float
    samples: int


@dataclass(frozen=True)
class Evaluation:
    """What the test of a model found.

    Attributes:
        accuracy: in [0, 1]; None where a user's trainer does not measure it.
        loss: mean cross-entropy in nats; None where not measured or not finite.
        metrics: what else a user's trainer measures, by name.
    """

    accuracy: float | None
    loss: float | None
    metrics: dict[str, float] | None = None


@torch.no_grad()
def tally(model: nn.Module, batch: Batch) -> Tally:
    """Test one batch; the model is in evaluation mode.

    Logits ``[n, classes, ...]``, labels ``[n, ...]``; labels of -100 count for nothing, as in
    PyTorch's cross-entropy.
    """
    inputs, labels = batch
    if inputs.is_floating_point():
        inputs = inputs.to(next(model.parameters()).dtype)
    logits: Tensor = model(inputs)
    loss = F.cross_entropy(logits.double(), labels, reduction="sum", ignore_index=_IGNORED)
    counted = int((labels != _IGNORED).sum())
    return Tally(int((logits.argmax(1) == labels).sum()), float(loss), counted)


def evaluation(tallies: Iterable[Tally]) -> Evaluation:
    """Add up tallies in their order."""
    parts = list(tallies)
    samples = sum(part.samples for part in parts)
    if not samples:
        return Evaluation(0.0, None)
    loss = sum(part.loss for part in parts) / samples
    accuracy = sum(part.correct for part in parts) / samples
    return Evaluation(accuracy, loss if math.isfinite(loss) else None)
