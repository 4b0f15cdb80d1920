"""A FedML data set as the engine takes it: the tensors behind our loaders, or any iterables."""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.engine.batches import LoaderData
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.fedml.loaders import FedMLDataset, follow_the_engine, staged_data


def engine_data(dataset: FedMLDataset, num_clients: int) -> FederatedData | LoaderData:
    """Return the first K clients, which are numbered from 0, and the test set."""
    sizes, loaders, test_loaders = dataset[4:7]
    for loader in (*loaders.values(), dataset[3], *(test_loaders or {}).values()):
        follow_the_engine(loader)
    dealt = dealt_data(dataset, num_clients)
    if dealt is not None:
        return dealt
    for client in range(num_clients):
        if client not in loaders or client not in sizes:
            raise UserError(
                f"train_args.client_num_in_total: {num_clients}: the data set has no client "
                f"{client} (clients are numbered from 0)"
            )
    return LoaderData(
        train_loaders={k: loaders[k] for k in range(num_clients)},
        sizes={k: sizes[k] for k in range(num_clients)},
        test_loader=test_batches(dataset),
        num_classes=dataset[7],
    )


def dealt_data(dataset: FedMLDataset, num_clients: int | None) -> FederatedData | None:
    """Return the tensors of data that this package dealt to so many clients, or None."""
    staged = staged_data(dataset)
    return staged if staged is not None and staged.num_clients == num_clients else None


def check_dataset(dataset: Any) -> None:
    """Refuse what has not the eight values of a FedML data set."""
    if not isinstance(dataset, list | tuple) or len(dataset) != 8:
        raise UserError("dataset: must be FedML's eight values, as fedml.data.load returns them")
    for place, of in ((4, "sizes"), (5, "training loaders"), (6, "test loaders")):
        given = dataset[place]
        if not isinstance(given, Mapping) and not (given is None and place == 6):
            kind = type(given).__name__
            raise UserError(f"dataset[{place}]: {kind}: must map client numbers to {of}")


def test_batches(dataset: FedMLDataset) -> Any:
    """Return the global test data, or the clients' one after another where there is none."""
    local = [] if dataset[6] is None else [*dataset[6].values()]
    return dataset[3] if dataset[3] is not None else _Chained([x for x in local if x is not None])


class _Chained:
    def __init__(self, loaders: list[Any]) -> None:
        self._loaders = loaders

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(self._loaders)
