"""Our data in the shape that FedML's loops expect, loaders of (x, y) batches; FedML's as ours."""

import logging
from collections.abc import Mapping
from operator import index
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.errors import UserError, shown, some_of
from fednnnn_plugin.processes.devices import tensors_made_on_cpu
from fednnnn_plugin.rounds.loaders import Chained, LoaderData, follow_the_engine
from fednnnn_plugin.seeds import derive_seed

_log = logging.getLogger(__name__)

_TEST_BATCH = 500  # images; the result does not depend on it

FedMLDataset = list[Any]
"""[train size, test size, train loader, test loader, {client: size}, {client: train loader},
{client: test loader}, number of classes]"""


class Images(Dataset[tuple[Tensor, Tensor]]):
    """Images ``[n, C, H, W]`` and labels ``[n]`` of a part of our data, by one index or by ``[m]``.

    They are normalised as they are read.
    """

    def __init__(self, data: FederatedData, images: Tensor, labels: Tensor) -> None:
        self._data, self._images, self._labels = data, images, labels

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int | Tensor) -> tuple[Tensor, Tensor]:
        return self._data.normalised(self._images[index]), self._labels[index]


class ImageLoader(DataLoader[tuple[Tensor, Tensor]]):
    """Some images ``[m, C, H, W]`` and labels ``[m]``, in batches that are indexed whole.

    With a seed every pass is shuffled, each differently, and none draws from torch's global
    generator. A ``batch_size`` of -1 is, as in FedML, all of them.
    """

    def __init__(
        self, whole: Images, indices: Tensor, batch_size: int, seed: int | None = None
    ) -> None:
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        super().__init__(
            Subset(whole, indices),  # type: ignore[arg-type]
            batch_size=max(len(indices), 1) if batch_size < 1 else batch_size,
            shuffle=generator is not None,
            generator=generator,
        )
        self._whole, self._indices = whole, indices

    def __iter__(self) -> Any:
        assert self.batch_sampler is not None
        with tensors_made_on_cpu():
            batches = [torch.tensor(each, dtype=torch.int64) for each in self.batch_sampler]
        for positions in batches:
            yield self._whole[self._indices[positions]]


class ClientLoader(ImageLoader):
    """One client's training images, which also tells the engine where they come from.

    The engine trains on the tensors themselves if every loader of a data set is one of these.
    """

    def __init__(self, data: FederatedData, client: int, batch_size: int, seed: int) -> None:
        indices = data.client_indices[client]
        super().__init__(_training(data), indices, batch_size, seed)
        self.data, self.client = data, client


class TestImages(ImageLoader):
    """Every ``step``-th test image from ``start`` on, in their order."""

    def __init__(self, data: FederatedData, start: int = 0, step: int = 1) -> None:
        total = len(data.test_labels)
        indices = torch.arange(min(start, total), total, step)
        super().__init__(Images(data, data.test_images, data.test_labels), indices, _TEST_BATCH)
        self.data, self.places = data, (start, step)


def fedml_dataset(data: FederatedData, batch_size: int, seed: int) -> FedMLDataset:
    """Return the eight values of a FedML data set; each client's loader shuffles differently.

    FedML's loops test on every client's local test data and add up what they count. Client k's is
    the test images k, k + K, k + 2K, …: the sums are those of one pass over the test set, where
    the whole set for every client would cost K passes, and None would drop clients from FedML's
    training accuracy too.
    """
    total = data.num_clients
    clients = range(total)
    shuffle = [derive_seed(seed, "loader", client=k) for k in (*clients, total)]
    return [
        len(data.train_labels),
        len(data.test_labels),
        ImageLoader(
            _training(data), torch.arange(len(data.train_labels)), batch_size, shuffle[total]
        ),
        TestImages(data),
        {k: data.client_size(k) for k in clients},
        {k: ClientLoader(data, k, batch_size, shuffle[k]) for k in clients},
        {k: TestImages(data, start=k, step=total) for k in clients},
        data.num_classes,
    ]


def _training(data: FederatedData) -> Images:
    return Images(data, data.train_images, data.train_labels)


def our_data(dataset: FedMLDataset) -> FederatedData | None:
    """Return the data set whose loaders those to train on and the whole test's are, or None."""
    test, local = dataset[3], dataset[5]
    if not isinstance(test, TestImages) or not isinstance(local, Mapping):
        return None
    ours = local.keys() == set(range(test.data.num_clients)) and all(
        isinstance(loader, ClientLoader) and loader.data is test.data and loader.client == client
        for client, loader in local.items()
    )
    return test.data if ours else None


def staged_data(dataset: FedMLDataset, num_clients: int | None) -> FederatedData | None:
    """Return the tensors behind a data set of ours, or None where a user has replaced a loader.

    By another of ours, too. None also where they are not divided between ``num_clients``, if that
    is given.
    """
    data, test, tests = our_data(dataset), dataset[3], dataset[6]
    if data is None or num_clients not in (None, data.num_clients):
        return None
    ours = isinstance(tests, Mapping) and all(
        isinstance(loader, TestImages) and (loader.data, loader.places) == (data, places)
        for loader, places in (
            (test, (0, 1)),
            *((tests.get(k), (k, data.num_clients)) for k in range(data.num_clients)),
        )
    )
    return data if ours else None


def engine_data(dataset: FedMLDataset, num_clients: int) -> FederatedData | LoaderData:
    """Return the first K clients, which are numbered from 0, and the test set."""
    sizes, loaders, test_loaders = dataset[4:7]
    for loader in (*loaders.values(), dataset[3], *(test_loaders or {}).values()):
        follow_the_engine(loader)
    if (staged := staged_data(dataset, num_clients)) is not None:
        return staged
    for client in range(num_clients):
        if client not in loaders or client not in sizes:
            raise UserError(
                "train_args.client_num_in_total",
                f"{num_clients}: the data set has no client {client} (clients are numbered from 0)",
            )
    without = [k for k in range(num_clients) if not has_data(loaders[k], sizes[k])]
    if len(without) == num_clients:
        raise UserError(
            "dataset[4]", "no client has data", "must be the clients' numbers of samples"
        )
    if without:
        named = some_of(without, 10)
        _log.warning("clients %s have no data: they are in no round's cohort", named)
    if dataset[3] is None and not any(map(has_data, (test_loaders or {}).values())):
        _log.warning("not tested: the data set has no test data")
    return LoaderData(
        train_loaders={k: () if k in without else loaders[k] for k in range(num_clients)},
        sizes={k: 0 if k in without else sizes[k] for k in range(num_clients)},
        test_loader=test_batches(dataset),
        num_classes=_number_of_classes(dataset[7]),
        client_tests={
            client: loader
            for client, loader in (test_loaders or {}).items()
            if client in range(num_clients) and has_data(loader)
        },
    )


def _number_of_classes(given: Any) -> int:
    whole = isinstance(given, float) and given.is_integer()  # as max() + 1 of a column may be
    try:
        return index(int(given) if whole else given)
    except TypeError:
        allowed = "must be the number of classes, a whole number: 1 where there are none"
        raise UserError("dataset[7]", shown(given), allowed) from None


def has_data(loader: Any, samples: Any = 1) -> bool:
    """Say whether a client has data: some samples, and batches unless their number is not known."""
    if loader is None or not samples:
        return False
    try:
        return len(loader) > 0
    except TypeError:
        return True


def check_dataset(dataset: Any) -> None:
    """Refuse what has not the eight values of a FedML data set."""
    if not isinstance(dataset, list | tuple) or len(dataset) != 8:
        raise UserError(
            "dataset", allowed="must be FedML's eight values, as fedml.data.load returns them"
        )
    for place, of in ((4, "sizes"), (5, "training loaders"), (6, "test loaders")):
        given = dataset[place]
        if not isinstance(given, Mapping) and not (given is None and place == 6):
            kind = type(given).__name__
            raise UserError(f"dataset[{place}]", kind, f"must map client numbers to {of}")


def test_batches(dataset: FedMLDataset) -> Any:
    """Return the global test data, or the clients' one after another where there is none."""
    local = [] if dataset[6] is None else [*dataset[6].values()]
    return dataset[3] if dataset[3] is not None else Chained([x for x in local if x is not None])
