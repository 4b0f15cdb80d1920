"""What the loss and the metrics make of a model's outputs: said before round 1."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from torch import Tensor

from fednnnn_plugin.client.loss import LOSSES, Loss, is_one_hot, value_of
from fednnnn_plugin.errors import UserError, printable
from fednnnn_plugin.rounds.evaluation import Metric

_Function = Callable[[Tensor, Tensor], Tensor | float]

_VIEWS = ("View", "Reshape", "Squeeze", "Select")  # in the names of autograd's nodes
_RANGES = (1.0, 0.0), (2.0, -1.0), (0.8, 0.1)  # of what follows targets: also signs, or shares
_SAME = 1e-4  # of a value, whose sums are in another order


def outputs_warnings(
    loss: Loss,
    outputs: Tensor,
    targets: Tensor,
    num_classes: int,
    scorers: Sequence[str],
    metrics: Mapping[str, Metric],
) -> list[str]:
    """Return what a user may not expect of outputs of the first samples.

    ``targets`` may be those of more samples. Scorers of classes are refused where the outputs have
    no column for each class; metrics are tried on the CPU.
    """
    of_loss: dict[str, _Function] = {}
    if loss not in LOSSES.values():
        of_loss[f"train_args.loss: {printable(loss.name)}"] = loss.mean
    named = {f"validation_args.metrics: {printable(key)}": of for key, of in metrics.items()}
    return [
        *_of_columns(loss, outputs, targets, num_classes, scorers),
        *_of_pairs(of_loss, outputs, targets),
        *_of_pairs(named, outputs.cpu(), targets.cpu()),
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


def _of_pairs(
    functions: Mapping[str, _Function], outputs: Tensor, targets: Tensor
) -> Iterator[str]:
    """Say which functions compare each output ``[n, 1]`` with all targets ``[n]``.

    Such a value stays the same in any order of the outputs; with outputs and targets of one shape
    it does not.
    """
    given, wanted = (tensor.shape[1:] for tensor in (outputs, targets))
    if sorted(map(list, (given, wanted))) != [[], [1]]:
        return
    made = [(scale * targets + shift).to(outputs) for scale, shift in _RANGES]
    forms = " and targets ".join("[n, 1]" if shape else "[n]" for shape in (given, wanted))
    for where, function in functions.items():
        if any(
            _change(function, like, targets) > _SAME
            and _change(function, like.view(-1, *given), targets) <= _SAME
            for like in made
        ):
            yield (
                f"{where}: with outputs {forms} it compares each output with the targets of all "
                "samples: give both one shape"
            )


def _change(function: _Function, outputs: Tensor, targets: Tensor) -> float:
    """Return how far a value changes where each output is another sample's; NaN without a value."""
    values = [value_of(function, made, targets) for made in (outputs, outputs.roll(1, 0))]
    one, other = (math.nan if value is None else value for value in values)
    return abs(one - other) / (max(abs(one), abs(other)) or 1.0)


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
