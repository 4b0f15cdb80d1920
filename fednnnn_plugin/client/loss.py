"""What local training minimises and a test reports: losses by name, and those of a user."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

_OF_NUMBERS = ("bce_with_logits", "mse")

#: The mean loss of a batch, a scalar, of a model's outputs and the targets.
LossFunction = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Loss:
    """A loss of a model's outputs ``[n, ...]`` and the targets ``[n, ...]`` of n samples."""

    name: str
    mean: LossFunction

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean of a batch, a scalar to differentiate."""
        return self.mean(outputs, targets)

    def predictions(self, outputs: Tensor, targets: Tensor) -> Tensor | None:
        """Return the predicted classes, in the shape of the targets; None where there are none.

        The largest logit's along dimension 1, which needs two or more; of ``bce_with_logits`` with
        one label a sample, whether its logit is above 0.
        """
        if targets.is_floating_point():
            return None
        if self.name == "bce_with_logits" and targets.ndim == 1:
            return (_like(outputs, targets) > 0).to(targets.dtype)
        if outputs.ndim != targets.ndim + 1 or outputs.shape[1] < 2 or self.name in _OF_NUMBERS:
            return None
        return outputs.argmax(1)


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
