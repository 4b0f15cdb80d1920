"""A federation's data as iterables of batches that a user brought, such as DataLoaders."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler

from fednnnn_plugin.data.tables import inputs_and_labels_of
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.fingerprint import Fingerprint


@dataclass(frozen=True)
class LoaderData:
    """A FedML data set: an iterable of (inputs, labels) batches for each client, one for the test.

    Nothing is known of the iterables; they may draw from the global generators. Clients may have
    ``client_tests`` of their own. The fingerprint is of what a user brought.
    """

    train_loaders: Mapping[int, Iterable[Any]]
    sizes: Mapping[int, int]
    test_loader: Iterable[Any]
    num_classes: int
    client_tests: Mapping[int, Iterable[Any]] = field(default_factory=dict)
    fingerprint: Fingerprint = field(default_factory=dict)

    def __post_init__(self) -> None:
        loaders = [("its test data", self.test_loader)]
        loaders += [(f"client {key}'s data", loader) for key, loader in self.train_loaders.items()]
        loaders += [(f"client {k}'s test data", loader) for k, loader in self.client_tests.items()]
        for whose, loader in loaders:
            if isinstance(loader, Iterator):
                kind = type(loader).__name__
                raise UserError(
                    "dataset",
                    f"{whose}: {kind}, which can be gone through once",
                    "must be a DataLoader or a list of batches",
                )

    @property
    def num_clients(self) -> int:
        """K."""
        return len(self.train_loaders)

    def client_size(self, client: int) -> int:
        """Return the number of samples of one client."""
        return self.sizes[client]

    @property
    def has_client_tests(self) -> bool:
        """Tell whether a client has a test part."""
        return bool(self.client_tests)


@dataclass(frozen=True)
class PairLoader:
    """A loader whose batches may be mappings, as one of pairs of inputs and labels."""

    loader: DataLoader[Any]
    where: str

    def __iter__(self) -> Iterator[Any]:
        return map(self._pair, self.loader)

    def __len__(self) -> int:
        return len(self.loader)

    def _pair(self, batch: object) -> object:
        if not isinstance(batch, Mapping):
            return batch
        inputs, labels = inputs_and_labels_of(batch, f"{self.where}: a batch")
        return batch[inputs], batch[labels]


@dataclass(frozen=True)
class Chained:
    """The batches of several loaders, one after another."""

    loaders: Sequence[Iterable[Any]]

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(self.loaders)


def follow_the_engine(loader: Any) -> None:
    """Have a loader draw from torch's global generator, which the engine seeds for each client.

    Its own generators, and those of workers that stay, continue from pass to pass: they would
    differ after an interruption.
    """
    if isinstance(loader, DataLoader):
        vars(loader).update(persistent_workers=False, _iterator=None)  # it refuses to set the first
    if isinstance(loader, DataLoader | Sampler):
        if isinstance(getattr(loader, "generator", None), torch.Generator):
            loader.generator = torch.default_generator  # type: ignore[union-attr]
        for inner in ("sampler", "batch_sampler"):
            follow_the_engine(getattr(loader, inner, None))
