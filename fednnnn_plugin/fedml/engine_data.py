"""A FedML data set as the engine takes it: the tensors behind our loaders, or any iterables."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch

from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.engine.batches import LoaderData
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.fedml.loaders import FedMLDataset, ImageLoader, staged_data


def engine_data(dataset: FedMLDataset, num_clients: int) -> FederatedData | LoaderData:
    """Return the first K clients, which are numbered from 0, and the test set."""
    staged = staged_data(dataset)
    if staged is not None and staged.num_clients == num_clients:
        return staged
    sizes, loaders = dataset[4], dataset[5]
    for client in range(num_clients):
        if client not in loaders or client not in sizes:
            raise UserError(
                f"train_args.client_num_in_total: {num_clients}: the data set has no client "
                f"{client} (clients are numbered from 0)"
            )
    return LoaderData(
        train_loaders={
            k: _SeededHere(loaders[k]) if isinstance(loaders[k], ImageLoader) else loaders[k]
            for k in range(num_clients)
        },
        sizes={k: sizes[k] for k in range(num_clients)},
        test_loader=test_batches(dataset),
        num_classes=dataset[7],
    )


def test_batches(dataset: FedMLDataset) -> Any:
    """Return the global test data, or the clients' one after another where there is none."""
    local = [] if dataset[6] is None else [*dataset[6].values()]
    return dataset[3] if dataset[3] is not None else _Chained([x for x in local if x is not None])


class _Chained:
    def __init__(self, loaders: list[Any]) -> None:
        self._loaders = loaders

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(self._loaders)


class _SeededHere:
    """One of our loaders, whose shuffle follows the generators that the engine has just seeded.

    Its own generator goes on from pass to pass, and would differ after an interruption.
    """

    def __init__(self, loader: ImageLoader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        self._loader.reseed(int(torch.randint(2**62, ())))
        return iter(self._loader)
