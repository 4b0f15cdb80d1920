"""A user's Datasets and DataLoaders, one for each client and one to test on, as batches."""

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from fednnnn_plugin.data.own_data import (
    UserData,
    check_clients,
    checked_labels,
    checked_part,
    count_classes,
    inputs_and_labels,
    members,
)
from fednnnn_plugin.errors import UserError, printable
from fednnnn_plugin.fingerprint import Fingerprint, tensors_digest
from fednnnn_plugin.recipe import Recipe
from fednnnn_plugin.rounds.batches import LoaderData, follow_the_engine
from fednnnn_plugin.seeds import isolated_generators
from fednnnn_plugin.user_code import call_code


def has_loaders(brought: UserData) -> bool:
    """Tell whether a client's part or the test part is a ``Dataset`` or a ``DataLoader``.

    A ``TensorDataset`` of inputs and labels counts as its tensors.
    """
    parts = brought.value
    if not isinstance(parts, tuple | list) or len(parts) != 2:
        return False
    return any(
        isinstance(part, Dataset | DataLoader) and inputs_and_labels(part) is None
        for part in (*members(parts[0]), *parts)
    )


def load_loaders(brought: UserData, recipe: Recipe) -> tuple[LoaderData, Fingerprint]:
    """Return each part's own loader, or one that divides it into the recipe's batches.

    All are gone through once: what they give is in the fingerprint. A loader draws from torch's
    global generator from then on.
    """
    where = f"data_args.dataset: {recipe.data_args.dataset}"
    clients, test = members(brought.value[0]), brought.value[1]
    if not clients:
        given = brought.value[0]
        empty = isinstance(given, tuple | list | Mapping)
        what = "none" if empty else f"a {printable(type(given).__name__)}"
        raise UserError(
            f"{where}: clients: {what}; must be a list with each client's part; a recipe divides "
            "arrays only"
        )
    check_clients(len(clients), recipe.train_args.client_num_in_total)
    if recipe.data_args.validation_fraction:
        raise UserError(
            f"data_args.validation_fraction: {recipe.data_args.validation_fraction}: must be 0: "
            "nothing can be held out of datasets and loaders; give arrays"
        )
    size = recipe.train_args.batch_size
    loaders = {
        f"{where}: client {k}": _loader(part, size, f"{where}: client {k}", shuffle=True)
        for k, part in enumerate(clients)
    }
    loaders[f"{where}: test"] = _loader(test, size, f"{where}: test", shuffle=False)
    labels: dict[str, list[Tensor]] = {name: [] for name in loaders}

    def read() -> str:
        with isolated_generators(0, "fingerprint"):  # they may shuffle: alike for every seed
            return tensors_digest(_told(loaders, labels))

    digest = call_code(read, where, lambda function: function())
    counts = {name: sum(map(len, batches)) for name, batches in labels.items()}
    for name, count in counts.items():
        if not count:
            raise UserError(f"{name}: has no sample; must have at least one")
    classes = count_classes([*chain.from_iterable(labels.values())], where)
    *sizes, _ = counts.values()
    *of_clients, of_test = loaders.values()
    data = LoaderData(dict(enumerate(of_clients)), dict(enumerate(sizes)), of_test, classes)
    split = tensors_digest([("sizes", torch.tensor(sizes))])
    return data, brought.fingerprint(str(digest), split)


def _loader(part: object, batch_size: int, where: str, *, shuffle: bool) -> DataLoader[Any]:
    if isinstance(part, DataLoader):
        follow_the_engine(part)
        return part
    if pair := inputs_and_labels(part):
        inputs, labels = checked_part(pair, where)
        if inputs.dtype == torch.uint8:
            raise UserError(
                f"{where}: inputs: uint8: must be floating or int64 beside Datasets and "
                "DataLoaders, as only arrays alone are normalised"
            )
        part = TensorDataset(inputs, labels)
    size: Any = 0
    if isinstance(part, Dataset) and hasattr(part, "__len__"):
        size = call_code(len, where, lambda length: length(part))
    if not isinstance(part, Dataset) or isinstance(part, IterableDataset) or not size:
        kind = printable(type(part).__name__)
        raise UserError(
            f"{where}: a {kind}; must be (inputs, labels), a DataLoader, or a Dataset that has a "
            "length and is not empty"
        )
    return DataLoader(part, size if batch_size == -1 else batch_size, shuffle=shuffle)


def _told(
    loaders: dict[str, DataLoader[Any]], labels: dict[str, list[Tensor]]
) -> Iterable[tuple[str, Tensor]]:
    """Yield what the loaders give, by the client's name, and collect the labels."""
    for name, loader in loaders.items():
        for batch in loader:
            fits = isinstance(batch, tuple | list) and len(batch) == 2
            if not (fits and isinstance(batch[0], Tensor) and isinstance(batch[1], Tensor)):
                raise UserError(f"{name}: its batches must be (inputs, labels), tensors")
            inputs, own = batch
            if len(own) != len(inputs):
                raise UserError(f"{name}: {len(own)} labels, for {len(inputs)} inputs")
            if len(own):
                # A worker's tensor holds a file descriptor.
                labels[name].append(checked_labels(own, f"{name}: labels").clone())
            yield from ((name, inputs), (name, own))
