"""Batch normalisation of a batch that is padded."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


class MaskedBatchNorm(TorchFunctionMode):
    """Where it is active, ``F.batch_norm`` of a training batch leaves out some samples.

    ``shares`` ``[n]`` is 1/k for each of the k samples that count, 0 for the others.
    """

    def __init__(self, shares: Tensor) -> None:
        super().__init__()
        self._shares = shares

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.batch_norm:
            return _batch_norm(self._shares, *args, **kwargs)
        return func(*args, **(kwargs or {}))


def _batch_norm(
    shares: Tensor,
    values: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    *,
    weight: Tensor,
    bias: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> Tensor:
    """Normalise each channel of ``[n, c, …]`` by the samples that count."""
    flat = values.flatten(2).to(torch.promote_types(values.dtype, torch.float32))
    area = flat.shape[2]
    count = (shares > 0).to(flat.dtype).sum() * area
    share = (shares / area).to(flat.dtype).view(-1, 1, 1)
    mean = (flat * share).sum((0, 2), keepdim=True)
    centred = flat - mean
    var = (centred.square() * share).sum((0, 2), keepdim=True)
    unbiased = var.detach() * (count / (count - 1))
    for running, now in ((running_mean, mean.detach()), (running_var, unbiased)):
        running.mul_(1 - momentum).add_(now.flatten(), alpha=momentum)
    scale = (var + eps).rsqrt() * weight.view(-1, 1)
    return (centred * scale + bias.view(-1, 1)).view_as(values).to(values.dtype)
