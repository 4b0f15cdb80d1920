"""Batch normalisation of a batch that is padded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


class MaskedBatchNorm(TorchFunctionMode):
    """Where it is active, ``F.batch_norm`` of a training batch leaves out some samples.

    Args:
        shares: ``[n]``, 1/k for each of the k samples that count, 0 for the others.
    """

    def __init__(self, shares: Tensor) -> None:
        super().__init__()
        self._shares = shares

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call ``func``, or what stands for it here."""
        kwargs = kwargs or {}
        if func is F.batch_norm and kwargs["training"]:
            del kwargs["training"]
            return self._batch_norm(*args, **kwargs)
        return func(*args, **kwargs)

    def _batch_norm(
        self,
        values: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        *,
        weight: Tensor | None,
        bias: Tensor | None,
        momentum: float,
        eps: float,
    ) -> Tensor:
        """Normalise each channel of ``[n, c, …]`` by the samples that count."""
        dtype, area = values.dtype, values[0, 0].numel()
        values = values.to(torch.promote_types(dtype, torch.float32))
        channel, sample = (1, -1, *[1] * (values.dim() - 2)), (-1, *[1] * (values.dim() - 1))
        over = [dim for dim in range(values.dim()) if dim != 1]
        shares = (self._shares / area).to(values.dtype).view(sample)
        mean = (values * shares).sum(over)
        centred = values - mean.view(channel)
        var = (centred.square() * shares).sum(over)
        if running_mean is not None and running_var is not None:
            count = (self._shares > 0).to(values.dtype).sum() * area
            unbiased = var.detach() * (count / (count - 1))
            for running, now in ((running_mean, mean.detach()), (running_var, unbiased)):
                running.mul_(1 - momentum).add_(now, alpha=momentum)
        scale = (var + eps).rsqrt() if weight is None else (var + eps).rsqrt() * weight
        normal = centred * scale.view(channel)
        return (normal if bias is None else normal + bias.view(channel)).to(dtype)
