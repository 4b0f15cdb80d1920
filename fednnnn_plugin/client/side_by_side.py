"""A model's own forward pass, for several clients at once."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


class SideBySide(TorchFunctionMode):
    """Where it is active, layers compute m clients at once, each by its own weights.

    Activations are ``[n, m·c, …]``, the channels of one client after those of another; parameters
    and buffers ``[m, …]``. Convolutions have m times the groups, products are one of m matrices,
    normalisation has m times the channels; activation and pooling are as they are. A layer that is
    none of these and has weights, or mixes channels, gives something else: see ``group_probe``.

    ``shares`` ``[m, n]`` is 1/k for each of the k samples of a client's batch, 0 for those that pad
    it, which batch normalisation leaves out; None where none does. Dropout draws by each client's
    generator, in which its batch has ``lengths`` samples; on a CPU what it draws for the client
    alone, where that has its images in the usual order of memory.
    """

    def __init__(
        self,
        clients: int,
        shares: Tensor | None = None,
        generators: Sequence[Generator] = (),
        lengths: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self._m, self._shares = clients, shares
        self._generators, self._lengths = generators, lengths
        self._layers: dict[Any, Callable[..., Tensor]] = {
            F.conv1d: self._convolution(F.conv1d),
            F.conv2d: self._convolution(F.conv2d),
            F.conv3d: self._convolution(F.conv3d),
            F.linear: self._linear,
            F.batch_norm: self._batch_norm,
            F.group_norm: self._group_norm,
        }
        if generators:
            self._layers[F.dropout] = self._dropout

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._layers.get(func, func)(*args, **(kwargs or {}))

    def _convolution(self, convolution: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def convolve(
            values: Tensor,
            weight: Tensor,
            bias: Tensor | None = None,
            stride: Any = 1,
            padding: Any = 0,
            dilation: Any = 1,
            groups: int = 1,
        ) -> Tensor:
            kernels, offsets = weight.flatten(0, 1), _row(bias)
            more = (stride, padding, dilation, groups * self._m)
            return convolution(values, kernels, offsets, *more)

        return convolve

    def _linear(self, values: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Of ``[n, m·c]``, or ``[n·m, c]`` where the model views it by its number of features."""
        rows = values.reshape(-1, self._m, weight.shape[-1]).transpose(0, 1)
        columns = weight.transpose(1, 2)
        if bias is None:
            return torch.bmm(rows, columns).transpose(0, 1).flatten(1)
        return torch.baddbmm(bias.unsqueeze(1), rows, columns).transpose(0, 1).flatten(1)

    def _group_norm(
        self,
        values: Tensor,
        num_groups: int,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        return F.group_norm(values, num_groups * self._m, _row(weight), _row(bias), eps)

    def _batch_norm(
        self,
        values: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        running = _row(running_mean), _row(running_var)
        if self._shares is None or not training:
            return F.batch_norm(values, *running, _row(weight), _row(bias), training, momentum, eps)
        normalised = self._masked(self._shares, values, running, momentum, eps)
        if weight is not None and bias is not None:
            normalised = normalised * weight[None, :, :, None] + bias[None, :, :, None]
        return normalised.reshape(values.shape).to(values.dtype)

    def _masked(
        self,
        shares: Tensor,
        values: Tensor,
        running: tuple[Tensor | None, Tensor | None],
        momentum: float,
        eps: float,
    ) -> Tensor:
        """Normalise each client's channels ``[n, m, c, …]`` by the samples that count."""
        dtype = torch.promote_types(values.dtype, torch.float32)
        flat = values.unflatten(1, (self._m, -1)).to(dtype)
        # A feature is a channel of one element.
        flat = flat.flatten(3) if flat.ndim > 3 else flat.unsqueeze(3)
        area = flat.shape[3]
        share = (shares / area).T[:, :, None, None].to(dtype)
        count = (shares > 0).sum(1, keepdim=True).to(dtype) * area
        mean = (flat * share).sum((0, 3), keepdim=True)
        centred = flat - mean
        var = (centred.square() * share).sum((0, 3), keepdim=True)
        unbiased = var.detach()[0, :, :, 0] * (count / (count - 1))
        for kept, now in zip(running, (mean.detach(), unbiased), strict=True):
            if kept is not None:
                kept.mul_(1 - momentum).add_(now.flatten(), alpha=momentum)
        return centred * (var + eps).rsqrt()

    def _dropout(
        self, values: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if not training or not 0 < p < 1:
            return F.dropout(values, p, training)
        by_client = values.unflatten(1, (self._m, -1)).transpose(0, 1)
        kept = torch.zeros(by_client.shape, dtype=values.dtype, device=values.device)
        for mask, length, generator in zip(kept, self._lengths, self._generators, strict=True):
            mask[:length].bernoulli_(1 - p, generator=generator)
        return values * kept.div_(1 - p).transpose(0, 1).flatten(1, 2)


def _row(tensor: Tensor | None) -> Tensor | None:
    """Return what m clients have, ``[m, c]``, as ``[m·c]``, a view of neighbours."""
    return None if tensor is None else tensor.flatten()
