"""Local training of several clients in one set of kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.rnn import pad_sequence

from fednnnn_plugin.client.local_sgd import LocalSGD

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class _Step:
    """A step of an epoch.

    Attributes:
        clients: who takes it, neighbours in the group.
        columns: which part of their orders.
        shares: of each sample in its client's loss, ``[clients, columns]``; 0 where an order has
            ended.
    """

    clients: slice
    columns: slice
    shares: Tensor


class BatchedSGD:
    """:class:`LocalSGD` on clients side by side in the leading dimension of every tensor.

    Each client keeps its own weights, BatchNorm statistics, batches and proximal anchor: the
    function is that of one client after another, in another order of additions. The clients of one
    call have the same number of steps an epoch. Where their last batches differ in length, the
    shorter ones are padded and masked; with BatchNorm, whose statistics padding would change,
    neighbours of one length take the last step together, and others after them.

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
        self._trained = [name for name, p in model.named_parameters() if p.requires_grad]
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

        Raises:
            ValueError: the clients' numbers of steps differ.
        """
        # Everything that the steps need is staged first: a GPU need not wait for the host again.
        device = self._labels.device
        steps = self._steps([len(order[0]) for order in orders], device)
        by_client = [torch.stack(list(order), dim=1) for order in orders]
        positions = pad_sequence(by_client, batch_first=True).to(device)
        stacked = {
            name: tensor.expand(len(orders), *tensor.shape).clone()
            for name, tensor in state.items()
        }
        for epoch in range(self._sgd.epochs):
            before_epoch()
            for step in steps:
                members = {name: tensor[step.clients] for name, tensor in stacked.items()}
                batches = positions[step.clients, step.columns, epoch]
                self._step(members, state, batches, step.shares)
        for client in range(len(orders)):
            yield {name: tensor[client] for name, tensor in stacked.items()}

    def _steps(self, lengths: Sequence[int], device: torch.device) -> list[_Step]:
        """Cut an epoch into whole batches of all clients, and what is then left of each."""
        size = self._sgd.batch_size
        batches = {-(-length // size) for length in lengths}
        if len(batches) != 1 or 0 in batches:
            raise ValueError(f"clients of {lengths} samples, batch size {size}: unequal steps")

        def step(first: int, start: int, counts: Sequence[int]) -> _Step:
            longest, kept = max(counts), torch.tensor(counts).unsqueeze(1)
            shares = (torch.arange(longest) < kept).to(self._sgd.dtype) / kept
            return _Step(
                slice(first, first + len(counts)),
                slice(start, start + longest),
                shares.to(device),
            )

        whole = (max(lengths) - 1) // size * size
        steps = [step(0, start, [size] * len(lengths)) for start in range(0, whole, size)]
        left = [length - whole for length in lengths]
        first = 0
        for _, run in groupby(left, key=lambda count: count if self._normalises else None):
            counts = list(run)
            steps.append(step(first, whole, counts))
            first += len(counts)
        return steps

    def _step(
        self, members: Tensors, anchors: Mapping[str, Tensor], batches: Tensor, shares: Tensor
    ) -> None:
        """Step clients once, each on its row of ``batches``."""
        images = self._images[batches].to(self._sgd.dtype)
        trained = {name: members[name] for name in self._trained}
        rest = {name: members[name] for name in members if name not in trained}
        with self._sgd.autocast(images.device):
            gradients = self._gradients(trained, rest, images, self._labels[batches], shares)
        self._sgd.descend(
            list(trained.values()),
            [gradients[name] for name in trained],
            [anchors[name] for name in trained],
        )

    def _loss(
        self, trained: Tensors, rest: Tensors, images: Tensor, labels: Tensor, shares: Tensor
    ) -> Tensor:
        logits = functional_call(self._model, (trained, rest), (images,))
        return (F.cross_entropy(logits, labels, reduction="none") * shares).sum()
