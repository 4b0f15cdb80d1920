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
        call = self._batch_norm if func is F.batch_norm else func
        return call(*args, **(kwargs or {}))

    def _batch_norm(
        self,
        input: Tensor,  # noqa: A002
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        """Normalise each channel of ``[n, c, …]`` by the samples that count."""
        if not training:
            return F.batch_norm(
                input, running_mean, running_var, weight, bias, training, momentum, eps
            )
        shape = (1, -1, *(1 for _ in input.shape[2:]))
        values = input.to(torch.promote_types(input.dtype, torch.float32))
        area = values[0, 0].numel()
        shares = (self._shares / area).to(values.dtype).view(-1, *(1 for _ in input.shape[1:]))
        over = [dim for dim in range(values.dim()) if dim != 1]
        centred = values - (mean := (values * shares).sum(over)).view(shape)
        var = (centred.square() * shares).sum(over)
        if running_mean is not None and running_var is not None:
            count = (self._shares > 0).to(values.dtype).sum() * area
            unbiased = var.detach() * (count / (count - 1))
            for running, now in ((running_mean, mean.detach()), (running_var, unbiased)):
                running.mul_(1 - momentum).add_(now, alpha=momentum)
        normal = centred * torch.rsqrt(var + eps).view(shape)
        if weight is not None:
            normal = normal * weight.view(shape)
        if bias is not None:
            normal = normal + bias.view(shape)
        return normal.to(input.dtype)
