"""What local training minimises and a test reports: losses by name, and those of a user."""

import copy
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.processes.devices import is_out_of_memory
from fednnnn_plugin.seeds import isolated_generators
from fednnnn_plugin.user_code import user_code

_FEW = 256  # samples, of which some are yes and some no
_OF_NUMBERS = ("bce_with_logits", "mse")
# PyTorch's losses that a user may give as they are: on logits, and of one column for each class.
_ON_LOGITS = (nn.CrossEntropyLoss, nn.BCEWithLogitsLoss, nn.MultiMarginLoss)
_OF_CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss, nn.MultiMarginLoss)
_FUNCTIONS: tuple[tuple[object, type], ...] = (
    (F.cross_entropy, nn.CrossEntropyLoss),
    (F.binary_cross_entropy_with_logits, nn.BCEWithLogitsLoss),
    (F.multi_margin_loss, nn.MultiMarginLoss),
    (F.nll_loss, nn.NLLLoss),
)

#: The mean loss of a batch, a scalar, of a model's outputs and the targets.
LossFunction = Callable[[Tensor, Tensor], Tensor]
_Function = TypeVar("_Function", bound=Callable[[Tensor, Tensor], object])


@dataclass(frozen=True)
class Loss:
    """A loss of a model's outputs ``[n, ...]`` and the targets ``[n, ...]`` of n samples.

    ``num_classes`` is the data's, for a user's loss, whose outputs may be no logits of classes;
    None where it is not known.
    """

    name: str
    mean: LossFunction
    num_classes: int | None = None

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean of a batch, a scalar to differentiate."""
        return self.mean(outputs, targets)

    def fresh(self, device: torch.device) -> "Loss":
        """Return this loss as it was given, on a device; what the copy keeps, no other finds."""
        mean = fresh(self.mean, device)
        return self if mean is self.mean else replace(self, mean=mean)

    def predictions(self, outputs: Tensor, targets: Tensor) -> Tensor | None:
        """Return the predicted classes, in the shape of the targets; None where there are none.

        The largest logit's along dimension 1, which needs two or more; of ``bce_with_logits`` with
        one label a sample, whether its logit is above 0.
        """
        if targets.is_floating_point():
            return None
        if self.name == "bce_with_logits" and targets.ndim == 1:
            return (_like(outputs, targets) > 0).to(targets.dtype)
        if self.name in _OF_NUMBERS or not self.is_of_classes(outputs, targets):
            return None
        return outputs.argmax(1)

    def is_of_classes(self, outputs: Tensor, targets: Tensor) -> bool:
        """Tell whether outputs have a column for each class, along dimension 1.

        Those of a user's loss need as many as there are classes, where a sample has one label: they
        may be an embedding. Of a vocabulary, of which each place has a word, some may not occur.
        """
        if outputs.ndim != targets.ndim + 1 or outputs.shape[1] < 2:
            return False
        fits = self.num_classes in (None, outputs.shape[1])
        return fits or targets.ndim > 1 or issubclass(self._kind, _OF_CLASSES)

    def is_on_logits(self, outputs: Tensor, targets: Tensor) -> bool | None:
        """Tell whether outputs of yes and no are logits; None where the loss does not say it.

        Targets are 0 and 1. Outputs that are equal to them are the best of probabilities; a loss on
        logits is lower still where they go beyond, as at 4 and -3; one on probabilities is not, or
        does not take them.
        """
        if self.takes_logits:
            return True
        targets = targets[:_FEW]
        best = targets.to(outputs.dtype).reshape(outputs[:_FEW].shape)
        equal, beyond = (value_of(self.mean, made, targets) for made in (best, 7 * best - 3))
        if equal is None:
            return None
        return beyond is not None and beyond < equal

    @property
    def takes_logits(self) -> bool:
        """Whether this is a loss of PyTorch's, or by name, on logits."""
        return self.name == "bce_with_logits" or issubclass(self._kind, _ON_LOGITS)

    @property
    def _kind(self) -> type:
        """The class of PyTorch's loss that this is."""
        mean: object = self.mean
        while isinstance(mean, partial):
            mean = mean.func
        return next((kind for each, kind in _FUNCTIONS if each is mean), type(mean))


def fresh(function: _Function, device: torch.device) -> _Function:
    """Return a copy of a loss or a metric, on a device; itself where it cannot be copied.

    The copy is whole: it may change its parameters, and no other client is to find that.
    """
    try:
        copied = copy.deepcopy(function)
        return copied.to(device) if isinstance(copied, nn.Module) else copied
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return function


@torch.no_grad()
def value_of(
    function: Callable[[Tensor, Tensor], Tensor | float], outputs: Tensor, targets: Tensor
) -> float | None:
    """Return a loss or a metric of outputs that may be out of its range; None where it raises."""
    alike = isolated_generators(0, "model check")
    with suppress(UserError), user_code("value"), alike, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(fresh(function, outputs.device)(outputs, targets))
    return None


def is_one_hot(targets: Tensor) -> bool:
    """Tell whether targets ``[n, C]`` are floats, 1 in the column of the class and 0 elsewhere."""
    if targets.ndim != 2 or targets.shape[1] < 2 or not targets.is_floating_point():
        return False
    return bool((((targets == 0) | (targets == 1)).all(1) & (targets.sum(1) == 1)).all())


def _like(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return outputs ``[n, ..., 1]`` as ``[n, ...]`` where the targets are; nothing broadcasts."""
    if outputs.shape == (*targets.shape, 1):
        outputs = outputs.squeeze(-1)
    if outputs.shape != targets.shape:
        given, wanted = list(outputs.shape), list(targets.shape)
        raise ValueError(f"the model gives {given} for targets of {wanted}: must be the same")
    return outputs


def _of_one_dtype(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return both in float32 at least: bfloat16 would round the targets."""
    outputs = _like(outputs, targets)
    dtype = torch.promote_types(outputs.dtype, torch.float32)
    return outputs.to(dtype), targets.to(dtype)


def _bce_with_logits(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(*_of_one_dtype(outputs, targets))


def _mse(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(*_of_one_dtype(outputs, targets))


CROSS_ENTROPY = Loss("cross_entropy", F.cross_entropy)
#: The losses of a recipe: on logits ``[n, classes, ...]`` and labels ``[n, ...]``, of which -100
#: counts for nothing; the others on outputs and targets of one shape, and integers as numbers.
LOSSES = {
    loss.name: loss
    for loss in (CROSS_ENTROPY, Loss("bce_with_logits", _bce_with_logits), Loss("mse", _mse))
}
