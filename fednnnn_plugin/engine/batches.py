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
_EVALUATION_BATCH = 1_000


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
        self._data = data.to(device)
        self._sgd = sgd
        self._seed = seed
        self._device = device

    def epochs(self, client: int, round_number: int) -> Iterator[Iterator[Batch]]:
        """Yield each local epoch's batches."""
        generator = torch_generator(self._seed, "shuffle", round_number, client)
        images, labels = self._data.client_data(client)
        for _ in range(self._sgd.epochs):
            order = torch.randperm(len(labels), generator=generator).to(self._device)
            yield self._cut(images, labels, order)

    def _cut(self, images: Tensor, labels: Tensor, order: Tensor) -> Iterator[Batch]:
        for picked in order.split(self._sgd.batch_size):
            yield images[picked].to(self._sgd.dtype), labels[picked]

    def test(self) -> list[Batch]:
        """Return the test set's batches."""
        images = self._data.test_images.split(_EVALUATION_BATCH)
        labels = self._data.test_labels.split(_EVALUATION_BATCH)
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
            if inputs.is_floating_point():
                inputs = inputs.to(self._sgd.dtype)  # noqa: PLW2901
            yield inputs.to(self._device), labels.to(self._device, torch.int64)
