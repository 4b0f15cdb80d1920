"""A client's data as mini-batches: staged tensors, or whatever iterable a user brought."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.seeds import torch_generator

Batch = tuple[Tensor, Tensor]

# Large enough to hide the launches; on a CPU small enough for the activations to stay in its caches
_GPU_TEST_BATCH, _CPU_TEST_BATCH = 2_000, 200


@dataclass(frozen=True)
class LoaderData:
    """A FedML data set: an iterable of (inputs, labels) batches for each client, one for the test.

    Nothing is known of the iterables; they may draw from the global generators.
    """

    train_loaders: Mapping[int, Iterable[Any]]
    sizes: Mapping[int, int]
    test_loader: Iterable[Any]
    num_classes: int

    @property
    def num_clients(self) -> int:
        """K."""
        return len(self.train_loaders)

    def client_size(self, client: int) -> int:
        """Number of samples of one client."""
        return self.sizes[client]


class ClientBatches(Protocol):
    """Mini-batches of every client and of the test set, on the device and in the dtype to use."""

    def epochs(self, client: int, round_number: int) -> Iterator[Iterator[Batch]]:
        """Yield each local epoch's batches."""

    def test(self) -> list[Batch] | Iterator[Batch]:
        """Return the test set's batches."""


class TensorBatches:
    """Batches cut from tensors that stay where they are.

    Epoch e of client k in round r is a permutation from the generator of
    (seed, ``"shuffle"``, r, k), which goes on from epoch to epoch.
    """

    def __init__(self, data: FederatedData, sgd: LocalSGD, seed: int, device: torch.device) -> None:
        self.images = data.train_images.to(device)
        self.labels = data.train_labels.to(device)
        self._test = (data.test_images.to(device), data.test_labels.to(device))
        self._clients = data.client_indices
        self._sgd = sgd
        self._seed = seed

    def orders(self, client: int, round_number: int) -> list[Tensor]:
        """Return for each local epoch the positions of the client's images, on the CPU."""
        generator = torch_generator(self._seed, "shuffle", round_number, client)
        positions = self._clients[client]
        return [
            positions[torch.randperm(len(positions), generator=generator)]
            for _ in range(self._sgd.epochs)
        ]

    def epochs(self, client: int, round_number: int) -> Iterator[Iterator[Batch]]:
        """Yield each local epoch's batches."""
        for order in self.orders(client, round_number):
            yield self._cut(order.to(self.labels.device))

    def _cut(self, order: Tensor) -> Iterator[Batch]:
        for picked in order.split(self._sgd.batch_of(len(order))):
            yield _in_dtype(self.images[picked], self._sgd.dtype), self.labels[picked]

    def test(self) -> list[Batch]:
        """Return the test set's batches."""
        size = _CPU_TEST_BATCH if self.labels.device.type == "cpu" else _GPU_TEST_BATCH
        images, labels = (tensor.split(size) for tensor in self._test)
        return list(zip(images, labels, strict=True))


class LoaderBatches:
    """Batches as a user's iterables give them; each epoch iterates anew."""

    def __init__(self, data: LoaderData, sgd: LocalSGD, device: torch.device) -> None:
        self._data = data
        self._sgd = sgd
        self._device = device

    def epochs(self, client: int, round_number: int) -> Iterator[Iterator[Batch]]:
        """Yield each local epoch's batches."""
        for _ in range(self._sgd.epochs):
            yield self._staged(self._data.train_loaders[client])

    def test(self) -> Iterator[Batch]:
        """Return the test set's batches."""
        return self._staged(self._data.test_loader)

    def _staged(self, batches: Iterable[Any]) -> Iterator[Batch]:
        for inputs, labels in batches:
            staged = _in_dtype(inputs, self._sgd.dtype).to(self._device)
            yield staged, labels.to(self._device, torch.int64)


def _in_dtype(inputs: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the inputs in the dtype to train in; integers, such as tokens, stay what they are."""
    return inputs.to(dtype) if inputs.is_floating_point() else inputs
