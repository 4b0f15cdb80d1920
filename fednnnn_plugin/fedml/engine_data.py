"""A FedML data set as the engine takes it: the tensors behind our loaders, or any iterables."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch
from torch import nn

from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.engine.batches import LoaderData
from fednnnn_plugin.errors import UserError, printable
from fednnnn_plugin.fedml.loaders import FedMLDataset, ImageLoader, staged_data
from fednnnn_plugin.seeds import isolated_generators


def engine_data(dataset: FedMLDataset, num_clients: int) -> FederatedData | LoaderData:
    """Return the first K clients and the test set of a FedML data set.

    Args:
        dataset: FedML's eight values; its clients are numbered from 0.
        num_clients: K.

    Raises:
        UserError: the data set has fewer clients.
    """
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
        train_loaders={k: _reproducible(loaders[k]) for k in range(num_clients)},
        sizes={k: sizes[k] for k in range(num_clients)},
        test_loader=test_batches(dataset),
        num_classes=dataset[7],
    )


@torch.no_grad()
def check_images(model: nn.Module, args: Any, dataset: FedMLDataset) -> None:
    """Pass one of our images through a model, wherever that is; other data is not looked at.

    Raises:
        UserError: it does not take them, as FedML's own models of flattened images.
    """
    data = staged_data(dataset)
    if data is None:
        return
    image = data.train_images[:1].to(next(model.parameters()))
    training = model.training
    try:
        with isolated_generators(0, "model check"):
            model.eval()(image)
    except Exception as error:
        reason = printable(str(error).partition("\n")[0])
        raise UserError(
            f"model_args.model: {getattr(args, 'model', type(model).__name__)}: does not take "
            f"images of {list(image.shape[1:])}, as partition_method "
            f"{getattr(args, 'partition_method', None)} loads them (FedML's own lr takes "
            f"[784], its cnn [28, 28]): {reason}"
        ) from None
    finally:
        model.train(training)


def test_batches(dataset: FedMLDataset) -> Any:
    """Return the global test data, or the clients' one after another where there is none."""
    local = [] if dataset[6] is None else [*dataset[6].values()]
    return dataset[3] if dataset[3] is not None else _Chained([x for x in local if x is not None])


class _Chained:
    def __init__(self, loaders: list[Any]) -> None:
        self._loaders = loaders

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(self._loaders)


def _reproducible(loader: Any) -> Any:
    return _SeededHere(loader) if isinstance(loader, ImageLoader) else loader


class _SeededHere:
    """One of our loaders, whose shuffle follows the generators that the engine has just seeded.

    Its own generator goes on from pass to pass, and would differ after an interruption.
    """

    def __init__(self, loader: ImageLoader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        self._loader.reseed(int(torch.randint(2**62, ())))
        return iter(self._loader)
