"""Local training of several clients in one set of kernels."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.client.masked_norm import MaskedBatchNorm
from fednnnn_plugin.server.layout import Layout, ModelState


class GroupSGD:
    """:class:`LocalSGD` on clients side by side, the rows of one matrix ``[m, d]``.

    Each client keeps its own weights, buffers, batches and anchor: the function is that of one
    client after another, in another order of additions. The rows fall in size, so that those that
    still have a batch are a shrinking prefix, and all of them take a step at once: an epoch takes
    as many steps as the largest client's.

    Memory for ``most`` clients is held from the start; one call of ``train`` at a time.

    Args:
        sgd: the local training.
        model: what the layers compute; copied.
        layout: of its state.
        inputs: ``[n, …]`` on the device, in the dtype to train in or one to be cast.
        labels: int64 ``[n]``.
        most: clients in a call.
    """

    def __init__(
        self,
        sgd: LocalSGD,
        model: nn.Module,
        layout: Layout,
        inputs: Tensor,
        labels: Tensor,
        most: int,
    ) -> None:
        self._sgd, self._layout = sgd, layout
        self._inputs, self._labels = inputs, labels
        self._model = copy.deepcopy(model).to(inputs.device, sgd.dtype).train()
        own = self._model.state_dict()
        self._matrix = inputs.new_empty(most, layout.size, dtype=sgd.dtype)
        self._buffers = {name: torch.stack([own[name]] * most) for name in layout.buffers}
        self._rate = self._matrix.new_full((layout.size,), sgd.rate)
        for where in self._unreached():
            self._rate[where] = 0
        self._gradient = vmap(grad(self._loss), in_dims=(0, 0, 0, 0, 0, None))

    def train(
        self,
        start: ModelState,
        orders: Sequence[Sequence[Tensor]],
        before_epoch: Callable[[], None] = lambda: None,
    ) -> ModelState:
        """Train clients that all start from one model.

        Args:
            start: the model.
            orders: for each client, the largest first, for each epoch, the positions of its inputs
                in the order of training, int64 on the CPU.
            before_epoch: called before each epoch; may raise to end the training.

        Returns:
            The clients' models, in memory that the next call overwrites.
        """
        lengths = [len(order[0]) for order in orders]
        assert lengths == sorted(lengths, reverse=True)
        picked, shares = self._steps(torch.tensor(lengths).unsqueeze(1))
        padded = [not bool(share.all()) for share in shares]

        def cut(flat: Tensor) -> list[Tensor]:
            parts = flat.split([share.numel() for share in shares])
            return [part.view_as(share) for part, share in zip(parts, shares, strict=True)]

        # Everything that the steps need is staged first: a GPU need not wait for the host again.
        device = self._labels.device
        laid = torch.stack([torch.cat(epoch) for epoch in zip(*orders, strict=True)])
        batches = laid[:, torch.cat([step.flatten() for step in picked])].to(device)
        staged = cut(torch.cat([share.flatten() for share in shares]).to(device))
        trained = ModelState(
            self._matrix[: len(orders)],
            {name: tensor[: len(orders)] for name, tensor in self._buffers.items()},
        )
        trained.vector.copy_(start.vector)
        for name, tensor in trained.buffers.items():
            tensor.copy_(start.buffers[name])
        anchor = self._sgd.anchor(start.vector)
        for epoch in batches:
            before_epoch()
            for batch, share, short in zip(cut(epoch), staged, padded, strict=True):
                self._step(batch, share, anchor, padded=short)
        return trained

    def _steps(self, sizes: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Cut an epoch of clients of ``sizes`` ``[m, 1]`` into steps ``[clients, columns]``.

        Returns:
            For each step the places in the clients' orders, laid end to end, with a client's last
            one repeated where its batch is shorter than the others'; and the share of each sample
            in its client's loss, 0 where it is a repetition.
        """
        starts, longest = sizes.cumsum(0) - sizes, int(sizes[0])
        picked, shares = [], []
        for columns in torch.arange(longest).split(self._sgd.batch_of(longest)):
            rows = int((sizes > columns[0]).sum())
            kept = columns < sizes[:rows]
            picked.append(starts[:rows] + columns.minimum(sizes[:rows] - 1))
            shares.append(kept.to(self._sgd.dtype) / kept.sum(1, keepdim=True))
        return picked, shares

    def _step(self, batch: Tensor, shares: Tensor, anchor: Tensor, *, padded: bool) -> None:
        """Step the first clients once, each on its row of ``batch``."""
        weights = self._matrix[: len(batch)]
        buffers = {name: tensor[: len(batch)] for name, tensor in self._buffers.items()}
        inputs, labels = self._inputs[batch].to(self._sgd.dtype), self._labels[batch]
        with self._sgd.autocast(inputs.device):
            gradient = self._gradient(weights, buffers, inputs, labels, shares, padded)
        if self._sgd.rate:
            weights.lerp_(anchor, self._rate)
        weights.add_(gradient, alpha=-self._sgd.learning_rate)

    def _loss(
        self,
        vector: Tensor,
        buffers: dict[str, Tensor],
        inputs: Tensor,
        labels: Tensor,
        shares: Tensor,
        padded: bool,
    ) -> Tensor:
        """Return a client's loss; split in one operation, the gradient is one concatenation."""
        entries = self._layout.entries
        parts = vector.split([entry.shape.numel() for entry in entries])
        tensors = buffers | {
            entry.name: part.view(entry.shape) for entry, part in zip(entries, parts, strict=True)
        }
        # PyTorch's own, side by side, takes neither padding nor bfloat16 beside float32.
        own = not padded and self._sgd.precision != "bf16"
        with nullcontext() if own else MaskedBatchNorm(shares):
            logits = functional_call(self._model, tensors, (inputs,))
        return (F.cross_entropy(logits, labels, reduction="none") * shares).sum()

    def _unreached(self) -> list[slice]:
        """Return the parameters that the loss does not reach, by a step that nobody takes."""
        weights = [self._model.get_parameter(entry.name) for entry in self._layout.entries]
        logits = self._model(self._inputs[:2].to(self._sgd.dtype))
        gradients = torch.autograd.grad(logits.sum(), weights, allow_unused=True)
        pairs = zip(self._layout.entries, gradients, strict=True)
        return [entry.where for entry, gradient in pairs if gradient is None]
