"""Testing a model."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fednnnn_plugin.engine.batches import Batch

_IGNORED = -100


class Tally(NamedTuple):
    """Correct labels, summed loss and number of labels; a sample may have one for each pixel."""

    correct: int
    loss: float
    samples: int


@dataclass(frozen=True)
class Evaluation:
    """What the test of a model found.

    Accuracy is in [0, 1], the loss the mean cross-entropy in nats; None where a user's trainer does
    not measure it, or the loss is not finite. ``metrics`` is what else it measures, by name.
    """

    accuracy: float | None = None
    loss: float | None = None
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
    correct, loss, samples = (
        sum(column) for column in zip(Tally(0, 0.0, 0), *tallies, strict=True)
    )
    if not samples:
        return Evaluation()
    mean = loss / samples
    return Evaluation(correct / samples, mean if math.isfinite(mean) else None)
