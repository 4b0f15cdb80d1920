"""Local training of several clients in one set of kernels."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.client.masked_norm import MaskedBatchNorm
from fednnnn_plugin.server.layout import Layout, ModelState


@dataclass(frozen=True)
class _Step:
    """A step of an epoch, of the first ``rows`` clients; both tensors ``[rows, columns]``.

    Attributes:
        picked: places in the clients' orders, laid end to end; a client's last one repeated where
            its batch is shorter than the others'.
        shares: of each sample in its client's loss; 0 where it is a repetition.
    """

    picked: Tensor
    shares: Tensor


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
        self._buffers = {
            name: inputs.new_empty(most, *own[name].shape, dtype=own[name].dtype)
            for name in layout.buffers
        }
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
            orders: for each client, for each epoch, the positions of its inputs in the order of
                training, int64 on the CPU.
            before_epoch: called before each epoch; may raise to end the training.

        Returns:
            The clients' models in the order of ``orders``, in memory that the next call overwrites.
        """
        count, device = len(orders), self._labels.device
        rows = sorted(range(count), key=lambda client: -len(orders[client][0]))
        steps = list(self._steps([len(orders[client][0]) for client in rows]))
        # Everything that the steps need is staged first: a GPU need not wait for the host again.
        epochs = zip(*(orders[client] for client in rows), strict=True)
        laid = torch.stack([torch.cat(epoch) for epoch in epochs])
        batches = laid[:, torch.cat([step.picked.flatten() for step in steps])].to(device)
        shares = torch.cat([step.shares.flatten() for step in steps]).to(device)
        cuts = [step.shares.numel() for step in steps]
        padded = [not bool(step.shares.all()) for step in steps]
        self._matrix[:count] = start.vector
        for name, tensor in self._buffers.items():
            tensor[:count] = start.buffers[name]
        anchor = self._sgd.anchor(start.vector)
        for epoch in batches:
            before_epoch()
            parts = zip(steps, epoch.split(cuts), shares.split(cuts), padded, strict=True)
            for step, batch, share, short in parts:
                shape = step.shares.shape
                self._step(batch.view(shape), share.view(shape), anchor, padded=short)
        trained = ModelState(
            self._matrix[:count], {name: tensor[:count] for name, tensor in self._buffers.items()}
        )
        if rows == list(range(count)):
            return trained
        back = torch.tensor(rows).argsort().to(device)
        return ModelState(
            trained.vector[back], {name: tensor[back] for name, tensor in trained.buffers.items()}
        )

    def _steps(self, lengths: Sequence[int]) -> Iterator[_Step]:
        """Cut an epoch of clients of falling lengths."""
        sizes = torch.tensor(lengths).unsqueeze(1)
        starts = sizes.cumsum(0) - sizes
        batch = self._sgd.batch_of(lengths[0])
        for first in range(0, lengths[0], batch):
            rows = int((sizes > first).sum())
            columns = torch.arange(first, min(first + batch, lengths[0]))
            size, kept = sizes[:rows], columns < sizes[:rows]
            picked = starts[:rows] + columns.minimum(size - 1)
            yield _Step(picked, kept.to(self._sgd.dtype) / kept.sum(1, keepdim=True))

    def _step(self, batch: Tensor, shares: Tensor, anchor: Tensor, *, padded: bool) -> None:
        """Step the first clients once, each on its row of ``batch``."""
        weights = self._matrix[: len(batch)]
        buffers = {name: tensor[: len(batch)] for name, tensor in self._buffers.items()}
        inputs = self._inputs[batch].to(self._sgd.dtype)
        with self._sgd.autocast(inputs.device):
            gradient = self._gradient(weights, buffers, inputs, self._labels[batch], shares, padded)
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
        # Split in one operation, whose derivative is one concatenation.
        parts = vector.split([entry.shape.numel() for entry in self._layout.entries])
        named = zip(self._layout.entries, parts, strict=True)
        weights = {entry.name: part.view(entry.shape) for entry, part in named}
        # PyTorch's own, side by side, takes neither padding nor bfloat16 beside float32.
        own = not padded and self._sgd.precision != "bf16"
        with nullcontext() if own else MaskedBatchNorm(shares):
            logits = functional_call(self._model, weights | buffers, (inputs,))
        return (F.cross_entropy(logits, labels, reduction="none") * shares).sum()

    def _unreached(self) -> list[slice]:
        """Return the parameters that the loss does not reach, by a step that nobody takes."""
        weights = [self._model.get_parameter(entry.name) for entry in self._layout.entries]
        logits = self._model(self._inputs[:2].to(self._sgd.dtype))
        gradients = torch.autograd.grad(logits.sum(), weights, allow_unused=True)
        pairs = zip(self._layout.entries, gradients, strict=True)
        return [entry.where for entry, gradient in pairs if gradient is None]
