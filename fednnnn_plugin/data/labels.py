"""A user's labels: the classes or the numbers that a loss takes, or what to do with what came."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fednnnn_plugin.data.arrays import as_tensor, check_finite, is_integral, kind_of
from fednnnn_plugin.data.images import IGNORED
from fednnnn_plugin.data.tables import whole_column
from fednnnn_plugin.errors import UserError, printable

MAX_CLASSES = 100_000

_CROSS_ENTROPY, _YES_OR_NO = "cross_entropy", "bce_with_logits"
# Unsorted, the first label of each part would be its class 0.
_NUMBERED = (
    "of names of classes give pandas.factorize(y, sort=True)[0], y of all parts together; of "
    "numbers to predict y.astype(float)"
)
_SUM = 1e-3  # how far a sum of probabilities may be from 1


def checked_labels(value: object, where: str, loss: str = "") -> Tensor:
    """Check labels, and bring them to the CPU and to their dtype, int64 or float32.

    They are classes, integers [n, ...] from 0 on, of which -100 counts for nothing where a sample
    has several; or numbers, floating [n, ...]. ``loss`` is the recipe's name of a loss that says
    which of them it takes: ``mse`` integers as numbers, and ``bce_with_logits`` several of a sample
    as well; ``cross_entropy`` no numbers but the probabilities of the classes. Of others nothing is
    known.
    """
    value = whole_column(value)
    _refuse_objects(value, where)
    labels = as_tensor(value, where)
    if labels.dtype == torch.bool:
        raise UserError(where, kind_of(labels), "give integers: y.astype(int), or y.long()")
    floating = labels.is_floating_point()
    if not (floating or is_integral(labels)) or not labels.ndim or not labels.numel():
        raise UserError(where, kind_of(labels), "must be integers or floating [n, ...], not empty")
    given, labels = labels, check_finite(labels, where) if floating else labels.to(torch.int64)
    if floating and loss == _CROSS_ENTROPY:
        _check_probabilities(given, where)
    if loss == _YES_OR_NO:
        _check_yes_or_no(labels, where)
    if floating or loss == "mse" or (loss == _YES_OR_NO and labels.ndim > 1):
        return labels.float()
    counted = labels[labels != IGNORED] if labels.ndim > 1 else labels
    if counted.numel() and (least := int(counted.min())) < 0:
        raise UserError(where, f"has {least}; classes go from 0 on: {_NUMBERED}")
    return labels


def check_classes(labels: Tensor, inputs: Tensor, where: str, loss: str) -> None:
    """Refuse all classes of a part that are a column, or one-hot, where a sample has one class.

    Several labels of a sample are those of the places of its inputs ``[n, ...]``.
    """
    if loss != _CROSS_ENTROPY or labels.is_floating_point() or labels.ndim < 2:
        return
    is_sequence = inputs.ndim > 2 or inputs.dtype == torch.int64
    is_mask = labels.ndim > 2 and labels.ndim == inputs.ndim  # with a channel, as a grey image
    if is_sequence and labels.shape[1] in inputs.shape[1:] and not is_mask:
        return
    if labels.shape[1] == 1:
        of = "a place" if labels.ndim > 2 else "a sample"
        raise UserError(where, f"{kind_of(labels)}: {of} has one class", "give y[:, 0]")
    if labels.ndim == 2 and _are_one_hot(labels):
        raise UserError(
            where, f"{kind_of(labels)}, one-hot: a sample has one class", "give y.argmax(1)"
        )


def count_classes(labels: Sequence[Tensor], where: str) -> int:
    """Return the number of classes in all labels; of floating ones, of numbers for a sample."""
    first, *others = labels
    for other in others:
        if other.shape[1:] != first.shape[1:] or other.dtype != first.dtype:
            raise UserError(where, f"labels: {kind_of(other)}; others are {kind_of(first)}")
    if first.is_floating_point():
        return first[:1].numel()
    classes = 1 + max(int(part.max()) for part in labels)
    if not 2 <= classes <= MAX_CLASSES:
        hint = f": {_NUMBERED}" if classes > 2 else ""
        raise UserError(
            where, f"labels up to {classes - 1}: there must be 2 to {MAX_CLASSES} classes{hint}"
        )
    return classes


def class_numbers(labels: Sequence[Tensor], where: str) -> tuple[str, ...]:
    """Return the names of the classes in all labels, which are their numbers."""
    return tuple(map(str, range(count_classes(labels, where))))


def _refuse_objects(value: Any, where: str) -> None:
    are_names = isinstance(value, tuple | list) and value and isinstance(value[0], str)
    kind = getattr(getattr(value, "dtype", None), "kind", "")  # NumPy's and pandas's
    if are_names or kind in ("O", "U", "S", "T"):
        some = np.asarray(value, dtype=np.object_).ravel()[:3].tolist()
        raise UserError(
            where,
            f"names or other Python objects: {printable(some)}",
            f"must be numbers: {_NUMBERED}; of numbers of classes y.astype(int)",
        )


def _check_probabilities(labels: Tensor, where: str) -> None:
    """Refuse what cross-entropy would not take, or take for probabilities of classes."""
    several = labels.ndim > 1 and labels.shape[1] > 1
    if several and labels.min() >= 0 and (labels.double().sum(1) - 1).abs().max() < _SUM:
        return
    raise UserError(
        where,
        f"{kind_of(labels)}: for train_args.loss cross_entropy they must be classes, integers from "
        "0 on, or the probabilities of a sample's classes, of the sum 1",
        "give y.astype(int), or y[:, 0].astype(int) of a column; for numbers set loss: mse, for "
        "several labels of a sample loss: bce_with_logits",
    )


def _check_yes_or_no(labels: Tensor, where: str) -> None:
    """Refuse other numbers, of which the loss has no minimum."""
    low, high = labels.min().item(), labels.max().item()
    if low < -_SUM or high > 1 + _SUM:
        raise UserError(
            where,
            f"from {low:g} to {high:g}: for train_args.loss bce_with_logits they must be 0 or 1, "
            "or between",
            "give (y + 1) / 2 of -1 and 1, y - 1 of 1 and 2",
        )


def _are_one_hot(labels: Tensor) -> bool:
    ones = labels == 1
    return bool(((ones | (labels == 0)).all()) and (ones.sum(1) == 1).all())
