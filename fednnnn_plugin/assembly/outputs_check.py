"""What the loss and the metrics make of a model's outputs: said before round 1."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fednnnn_plugin.client.loss import LOSSES, Loss, is_one_hot
from fednnnn_plugin.errors import UserError, printable

_VIEWS = ("View", "Reshape", "Squeeze", "Select")  # in the names of autograd's nodes


def outputs_warnings(
    loss: Loss, outputs: Tensor, targets: Tensor, num_classes: int, scorers: Sequence[str]
) -> list[str]:
    """Return what a user may not expect of outputs of the first samples.

    ``targets`` may be those of more samples. Scorers of classes are refused where the outputs have
    no column for each class.
    """
    return [
        *_of_columns(loss, outputs, targets, num_classes, scorers),
        *_of_loss(loss, outputs, targets),
        *_of_probabilities(loss, outputs),
    ]


def _of_columns(
    loss: Loss, outputs: Tensor, targets: Tensor, num_classes: int, scorers: Sequence[str]
) -> Iterator[str]:
    if is_one_hot(targets) and not scorers:
        yield (
            "data_args.dataset: its labels are one-hot numbers, taken for probabilities: no "
            "accuracy is recorded; give y.argmax(1), or validation_args.metrics"
        )
    if targets.is_floating_point() or outputs.ndim != targets.ndim + 1 or outputs.shape[1] < 2:
        return
    if loss.is_of_classes(outputs, targets):
        of_places = targets.ndim > 1 and outputs.shape[2:] == targets.shape[1:]
        if of_places and (columns := outputs.shape[1]) < num_classes:
            yield (
                f"data_args.dataset: labels go up to {num_classes - 1}, and the outputs have "
                f"{columns} classes: accuracy and metrics by name count the others as wrong; where "
                "they are to count for nothing, give -100, and the loss ignore_index=-100"
            )
        return
    gives = (
        f"the model gives {list(outputs.shape[1:])} a sample, and there are {num_classes} classes"
    )
    if scorers:
        raise UserError(
            "validation_args.metrics",
            f"{printable(scorers[0])}: {gives}",
            "must be MODULE:FUNCTION, or outputs with a column for each class",
        )
    yield f"train_args.loss: {printable(loss.name)}: {gives}: no accuracy is recorded"


def _of_loss(loss: Loss, outputs: Tensor, targets: Tensor) -> Iterator[str]:
    """Say where a user's loss compares each output ``[n, 1]`` with all targets ``[n]``."""
    shapes = [tensor.shape[1:] for tensor in (outputs, targets)]
    if loss in LOSSES.values() or sorted(map(list, shapes)) != [[], [1]]:
        return
    spread = torch.linspace(0.1, 0.9, len(targets)).to(outputs)
    given, alike = (loss.value(spread.reshape(-1, *shape), targets) for shape in shapes)
    if given is not None and alike is not None and not math.isclose(given, alike, rel_tol=1e-4):
        forms = " and targets ".join("[n, 1]" if shape else "[n]" for shape in shapes)
        yield (
            f"train_args.loss: {printable(loss.name)}: with outputs {forms} it compares each "
            "output with the targets of all samples: give both one shape"
        )


def _of_probabilities(loss: Loss, outputs: Tensor) -> Iterator[str]:
    """Say where a loss on logits is given what a sigmoid or a softmax returns."""
    node = outputs.grad_fn
    while node is not None and any(view in node.name() for view in _VIEWS):
        node = node.next_functions[0][0]
    last = "" if node is None else node.name()
    if loss.takes_logits and last.startswith(("Sigmoid", "Softmax")):
        function = last.partition("Backward")[0].lower()
        yield (
            f"model_args.model: its outputs are those of a {function}, and train_args.loss "
            f"{printable(loss.name)} takes logits: leave the {function} out, or metrics are wrong"
        )
