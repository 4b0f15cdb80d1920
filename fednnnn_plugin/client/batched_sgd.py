"""Local training of several clients in one set of kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from fednnnn_plugin.client.local_sgd import LocalSGD

Tensors = dict[str, Tensor]


class BatchedSGD:
    """:class:`LocalSGD` on clients side by side in the leading dimension of every tensor.

    Each client keeps its own weights, BatchNorm statistics, batches and proximal anchor: the
    function is that of one client after another, in another order of additions. The clients of one
    call have the same number of steps an epoch; where their last batches differ in length, the
    shorter ones are padded and masked, or, for a model with BatchNorm, whose statistics padding
    would change, trained apart by length.

    Args:
        sgd: the local training.
        model: what the layers compute; its weights come to no use. One thread's own: calling it
            with others' weights changes it for the time of the call.
        images: ``[n, …]`` on the device, in the dtype to train in or one to be cast.
        labels: int64 ``[n]``.
    """

    def __init__(self, sgd: LocalSGD, model: nn.Module, images: Tensor, labels: Tensor) -> None:
        self._sgd = sgd
        self._model = model.train()
        self._images = images
        self._labels = labels
        self._trained = {name for name, p in model.named_parameters() if p.requires_grad}
        self._normalises = any(isinstance(module, _BatchNorm) for module in model.modules())
        self._gradients = vmap(grad(self._loss))

    def train(
        self,
        state: Mapping[str, Tensor],
        orders: Sequence[Sequence[Tensor]],
        before_epoch: Callable[[], None] = lambda: None,
    ) -> Iterator[Tensors]:
        """Train clients of equal steps an epoch that all start from ``state``.

        Args:
            state: parameters and buffers, by name.
            orders: for each client, for each epoch, the positions of its images in the order of
                training, int64.
            before_epoch: called before each epoch; may raise to end the training.

        Yields:
            Each client's state, in the order of ``orders``; views that share memory.
        """
        stacked = {
            name: tensor.expand(len(orders), *tensor.shape).clone()
            for name, tensor in state.items()
        }
        lengths = [len(order[0]) for order in orders]
        for epoch in range(self._sgd.epochs):
            before_epoch()
            self._epoch(stacked, state, [order[epoch] for order in orders], lengths)
        for client in range(len(orders)):
            yield {name: tensor[client] for name, tensor in stacked.items()}

    def _epoch(
        self,
        stacked: Tensors,
        anchors: Mapping[str, Tensor],
        orders: list[Tensor],
        lengths: list[int],
    ) -> None:
        size = self._sgd.batch_size
        whole = min(lengths) // size * size
        device = self._labels.device
        common = torch.stack([order[:whole] for order in orders]).to(device)
        for positions in common.split(size, dim=1):
            self._step(stacked, anchors, positions, None)
        rests = [order[whole:].to(device) for order in orders]
        self._last_step(stacked, anchors, rests)

    def _last_step(
        self, stacked: Tensors, anchors: Mapping[str, Tensor], rests: list[Tensor]
    ) -> None:
        lengths = sorted({len(rest) for rest in rests} - {0})
        if len(lengths) == 1:
            self._step(stacked, anchors, torch.stack(rests), None)
        elif lengths and not self._normalises:
            self._masked_step(stacked, anchors, rests, lengths[-1])
        else:
            for length in lengths:
                members = [i for i, rest in enumerate(rests) if len(rest) == length]
                some = {name: tensor[members] for name, tensor in stacked.items()}
                self._step(some, anchors, torch.stack([rests[i] for i in members]), None)
                for name, tensor in stacked.items():
                    tensor[members] = some[name]

    def _masked_step(
        self,
        stacked: Tensors,
        anchors: Mapping[str, Tensor],
        rests: list[Tensor],
        length: int,
    ) -> None:
        positions = torch.stack([F.pad(rest, (0, length - len(rest))) for rest in rests])
        shares = torch.tensor(
            [[1 / len(rest)] * len(rest) + [0.0] * (length - len(rest)) for rest in rests],
            dtype=self._sgd.dtype,
            device=positions.device,
        )
        self._step(stacked, anchors, positions, shares)

    def _step(
        self,
        stacked: Tensors,
        anchors: Mapping[str, Tensor],
        positions: Tensor,
        shares: Tensor | None,
    ) -> None:
        """Step every client once; ``shares`` are the samples' parts in their client's loss."""
        images = self._images[positions].to(self._sgd.dtype)
        labels = self._labels[positions]
        if shares is None:
            shares = torch.full_like(labels, 1 / labels.shape[1], dtype=self._sgd.dtype)
        parameters = {name: stacked[name] for name in stacked if name in self._trained}
        buffers = {name: stacked[name] for name in stacked if name not in self._trained}
        with self._sgd.autocast(images.device):
            gradients = self._gradients(parameters, buffers, images, labels, shares)
        for name, parameter in parameters.items():
            gradient = gradients[name]
            if self._sgd.weight_decay:
                gradient.add_(parameter, alpha=self._sgd.weight_decay)
            if self._sgd.prox_mu:
                gradient.add_(parameter - anchors[name], alpha=self._sgd.prox_mu)
            parameter.add_(gradient, alpha=-self._sgd.learning_rate)

    def _loss(
        self, parameters: Tensors, buffers: Tensors, images: Tensor, labels: Tensor, shares: Tensor
    ) -> Tensor:
        logits = functional_call(self._model, (parameters, buffers), (images,))
        return (F.cross_entropy(logits, labels, reduction="none") * shares).sum()
