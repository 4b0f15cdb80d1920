"""Testing a model."""

import copy
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fednnnn_plugin.engine.batches import Batch
from fednnnn_plugin.seeds import isolated_generators

_IGNORED = -100
# Large enough to hide a GPU's launches; on a CPU small enough for the caches.
_GPU_BATCH, _CPU_BATCH = 2_000, 200
_CPU_ROOM = 1 << 30  # bytes, of each worker


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


def batch_to_test(model: nn.Module, sample: Tensor, room: int) -> int:
    """Return how many samples like one, ``[1, …]`` on its device, are tested at once.

    As many as fit in ``room`` bytes of a GPU's memory, within limits: of a fixed room on a CPU, so
    that the sum of the losses is the same on every machine. For a sample it is no more than what
    autograd would keep of a forward pass.
    """
    model = copy.deepcopy(model).eval()
    weights = {tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(0 if tensor.data_ptr() in weights else tensor.nbytes)
        return tensor

    like = next(model.parameters())
    given = sample.to(like.device, like.dtype if sample.is_floating_point() else sample.dtype)
    saved = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with saved, isolated_generators(0, "model check"):
        model(given.clone())
    most, bound = (_CPU_BATCH, _CPU_ROOM) if given.device.type == "cpu" else (_GPU_BATCH, room)
    return max(1, min(most, bound // max(sum(kept), 1)))


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
