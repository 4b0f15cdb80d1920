"""Testing a model."""

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fednnnn_plugin.client.loss import CROSS_ENTROPY, Loss, fresh
from fednnnn_plugin.data.images import IGNORED
from fednnnn_plugin.errors import UserError, printable, reason
from fednnnn_plugin.rounds.batches import Batch
from fednnnn_plugin.run_folder.records import Evaluation
from fednnnn_plugin.seeds import isolated_generators
from fednnnn_plugin.server.transfer import to_host
from fednnnn_plugin.user_code import user_code

# Large enough to hide a GPU's launches; on a CPU small enough for the caches.
_GPU_BATCH, _CPU_BATCH = 2_000, 200
_CPU_ROOM = 1 << 30  # bytes, of each worker

PER_CLASS = "validation_args.per_class"

#: A number of a model's outputs ``[n, ...]`` and the targets ``[n, ...]`` of a whole test, on the
#: CPU; the larger the better, unless its attribute ``higher_is_better`` is false.
Metric = Callable[[Tensor, Tensor], float]


def higher_is_better(metric: Metric) -> bool:
    """Tell which way a metric is meant."""
    return bool(getattr(metric, "higher_is_better", True))


class Tally(NamedTuple):
    """What a batch adds to a test; a sample may have a label for each pixel or token.

    The outputs and the targets are those that metrics need, of the whole test at once.
    """

    correct: int
    loss: float  # summed
    samples: int  # over which the loss is the mean
    classified: int  # labels that are classes, of which some are correct
    by_class: tuple[tuple[int, int], ...] = ()  # of each class: samples, and how many are correct
    outputs: "np.ndarray[Any, Any] | None" = None
    targets: "np.ndarray[Any, Any] | None" = None


def batch_to_test(model: nn.Module, sample: Tensor, room: int) -> int:
    """Return how many samples like one, ``[1, …]`` on its device, are tested at once.

    As many as fit in ``room`` bytes of a GPU's memory, within limits: of a fixed room on a CPU, so
    that the sum of the losses is the same on every machine. For a sample it is no more than what
    autograd would keep of a forward pass.
    """
    model = copy.deepcopy(model)
    model.eval()
    own = (*model.parameters(), *model.buffers())
    weights = {tensor.data_ptr() for tensor in own if tensor.layout is torch.strided}
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        if tensor.layout is torch.strided and tensor.data_ptr() not in weights:
            kept.append(tensor.nbytes)  # a sparse one is the model's, as a graph's adjacency
        return tensor

    given = sample.to(next(model.parameters()).device)
    given = given.to(dtype_of(model)) if sample.is_floating_point() else given
    saved = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with saved, isolated_generators(0, "model check"):
        model(given.clone())
    most, bound = (_CPU_BATCH, _CPU_ROOM) if given.device.type == "cpu" else (_GPU_BATCH, room)
    return max(1, min(most, bound // max(sum(kept), 1)))


def dtype_of(model: nn.Module) -> torch.dtype:
    """Return the dtype of a model's floating parameters: some may be integers that do not train."""
    return next(each.dtype for each in model.parameters() if each.is_floating_point())


#: A batch's tally, with the client that is tested on it, 0 in a test of all, and its place.
Tested = tuple[tuple[int, int], Tally]


@torch.no_grad()
def tally(
    model: nn.Module,
    batch: Batch,
    loss: Loss = CROSS_ENTROPY,
    *,
    keep: bool = False,
    classes: int = 0,
) -> Tally:
    """Test one batch; the model is in evaluation mode. To ``keep`` outputs costs their memory.

    Each of so many ``classes`` is counted as well, if there are any.

    Logits ``[n, classes, ...]``, labels ``[n, ...]``; labels of -100 count for nothing, as in
    PyTorch's cross-entropy. Of another loss, the mean of each batch counts for its n samples.
    """
    inputs, targets = batch
    # A FedML script may have others, such as packed sequences.
    if isinstance(inputs, Tensor) and inputs.is_floating_point():
        inputs = inputs.to(dtype_of(model))
    if not targets.is_floating_point():
        targets = targets.to(torch.int64)
    outputs: Tensor = model(inputs)
    predicted = loss.predictions(outputs, targets)
    nothing, counted = targets.new_zeros(()), (targets != IGNORED).sum()
    if loss is CROSS_ENTROPY and not targets.is_floating_point():
        samples = counted
        total = F.cross_entropy(outputs.double(), targets, reduction="sum", ignore_index=IGNORED)
    else:
        samples = torch.full_like(counted, len(targets))
        # A copy for each batch: no matter which process tested the batches before it.
        total = loss.fresh(outputs.device)(outputs, targets).double() * len(targets)
    correct = nothing if predicted is None else (predicted == targets).sum()
    classified = nothing if predicted is None else counted
    numbers = torch.stack([x.double() for x in (correct, total, samples, classified)])
    by_class = _by_class(predicted, targets, classes) if classes else nothing.new_zeros(0, 2)
    kept = [to_host(each).numpy() for each in (outputs, targets)] if keep else []
    # Counts are exact in float64. A GPU's outputs have arrived when these have.
    right, lost, many, labels, *of = torch.cat([numbers, by_class.flatten().double()]).tolist()
    pairs = zip(map(int, of[::2]), map(int, of[1::2]), strict=True)
    return Tally(int(right), lost, int(many), int(labels), tuple(pairs), *kept)


def _by_class(predicted: Tensor | None, targets: Tensor, classes: int) -> Tensor:
    """Return of each class how many samples it has, and how many of them are correct: [C, 2]."""
    if predicted is None:
        raise UserError(
            PER_CLASS,
            "true: the test has no accuracy, as its labels are no classes or the outputs have no "
            "column for each",
            "must be false",
        )
    # A last row for labels of no class.
    rows = torch.where((targets >= 0) & (targets < classes), targets, classes).flatten()
    correct = (predicted == targets).flatten()
    counts = torch.bincount(2 * rows + correct, minlength=2 * classes + 2).view(-1, 2)[:classes]
    return torch.stack([counts.sum(1), counts[:, 1]], 1)


def evaluation(
    tallies: Iterable[Tally], metrics: Mapping[str, Metric] = MappingProxyType({})
) -> Evaluation:
    """Add up tallies in their order, and compute the metrics of all outputs together."""
    tallies = list(tallies)
    correct, samples, classified = (
        sum(getattr(each, name) for each in tallies)
        for name in ("correct", "samples", "classified")
    )
    if not samples:
        return Evaluation()
    counts = (each.by_class for each in tallies)  # [batches][C][2]
    mean = sum(each.loss for each in tallies) / samples
    found: dict[str, float | None] = {}
    if metrics:
        try:
            outputs, targets = (
                torch.from_numpy(np.concatenate([getattr(each, name) for each in tallies]))
                for name in ("outputs", "targets")
            )
        except ValueError as error:
            differ = f"the batches of the test differ in form: {reason(error)}"
            raise UserError("validation_args.metrics", differ, "pad all to one length") from None
        found = {key: _measured(key, metric, outputs, targets) for key, metric in metrics.items()}
    return Evaluation(
        correct / classified if classified else None,
        mean if math.isfinite(mean) else None,
        {name: value for name, value in found.items() if value is not None} or None,
        tuple((sum(n for n, _ in of), sum(c for _, c in of)) for of in zip(*counts, strict=True)),
    )


def _measured(name: str, metric: Metric, outputs: Tensor, targets: Tensor) -> float | None:
    where = f"validation_args.metrics: {printable(name)}"
    with user_code(where), isolated_generators(0, "metric"):
        value = float(fresh(metric, outputs.device)(outputs.clone(), targets.clone()))
    return value if math.isfinite(value) else None
