"""What a recipe's run is of: its data and model, or the objects that a program gave for them."""

from collections.abc import Iterable, Mapping
from itertools import chain
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.data.own_data import check_labels, count_classes, inputs_and_labels, members
from fednnnn_plugin.engine.batches import LoaderData
from fednnnn_plugin.engine.from_recipe import load_data, rank_device
from fednnnn_plugin.engine.functions import find_functions
from fednnnn_plugin.engine.ranks import Ranks
from fednnnn_plugin.engine.training import Inputs
from fednnnn_plugin.errors import UserError, printable
from fednnnn_plugin.fingerprint import Fingerprint, model_digests, tensors_digest
from fednnnn_plugin.models import create_model
from fednnnn_plugin.recipe import Recipe
from fednnnn_plugin.seeds import isolated_generators
from fednnnn_plugin.user_code import call_code, find_code, is_own

DATA, MODEL, RULE = "data_args.dataset", "model_args.model", "train_args.federated_optimizer"


def recipe_inputs(
    recipe: Recipe,
    ranks: Ranks,
    objects: Mapping[str, object] = MappingProxyType({}),
    *,
    allow_code: bool = False,
) -> Inputs:
    """Load a recipe's data and make its model, or take the ``objects`` by ``section.key``."""
    # Data may take their time: what all ranks can refuse comes first.
    functions = find_functions(recipe, objects, allow_code=allow_code)
    device = rank_device(recipe, ranks)
    data, fingerprint = recipe_data(recipe, ranks, objects.get(DATA), allow_code=allow_code)
    model, digests = recipe_model(
        recipe, data.num_classes, objects.get(MODEL), allow_code=allow_code
    )
    fingerprint = {**fingerprint, **digests, **functions.digests}
    return Inputs(model, data, device, fingerprint=fingerprint, functions=functions)


def recipe_data(
    recipe: Recipe, ranks: Ranks, given: object, *, allow_code: bool
) -> tuple[FederatedData | LoaderData, Fingerprint]:
    """Load a recipe's data, or what a program gave for them."""
    if loaders := _loaders(given, recipe):
        return loaders
    data = load_data(recipe, ranks, given=given, allow_code=allow_code)
    return data, data.fingerprint


def recipe_model(
    recipe: Recipe, num_classes: int, given: object, *, allow_code: bool
) -> tuple[nn.Module, Fingerprint]:
    """Make a recipe's model, or what a program gave for it."""
    name = recipe.model_args.model
    made = create_model(
        name,
        recipe.common_args.random_seed,
        num_classes,
        given=given,
        arguments=recipe.model_args.arguments,
        allow_code=allow_code,
    )
    if not is_own(name):
        return made, {}
    maker = find_code(MODEL, name, given, allow_code=allow_code)
    digests = (
        model_digests(made)
        if made is maker
        else model_digests(made, "drawn_weights", [maker])  # by the seed
    )
    return made, {"model": digests}


def _loaders(given: object, recipe: Recipe) -> tuple[LoaderData, Fingerprint] | None:
    """Take each client's batches from its ``Dataset`` or ``DataLoader``; None of other data.

    All are gone through once: what they give is in the fingerprint.
    """
    parts = given if isinstance(given, tuple | list) and len(given) == 2 else ((), ())
    clients, test = members(parts[0]), parts[1]
    if not any(isinstance(p, Dataset | DataLoader) and not _is_pair(p) for p in (*clients, test)):
        return None
    where, size = f"{DATA}: {recipe.data_args.dataset}", recipe.train_args.batch_size
    total = recipe.train_args.client_num_in_total
    if len(clients) != total:
        raise UserError(
            f"train_args.client_num_in_total: {total}: must be {len(clients)}: so many clients "
            "are in the split that the data have"
        )
    if recipe.data_args.validation_fraction:
        raise UserError(
            f"data_args.validation_fraction: {recipe.data_args.validation_fraction}: must be 0: "
            "nothing can be held out of datasets and loaders; give arrays"
        )
    named = [f"{where}: {whose}" for whose in (*(f"client {k}" for k in range(total)), "test")]
    loaders = [
        _loader(part, size, name, shuffle=name != named[-1])
        for part, name in zip((*clients, test), named, strict=True)
    ]
    labels: dict[str, list[Tensor]] = {name: [] for name in named}

    def read() -> str:
        with isolated_generators(0, "fingerprint"):  # they may shuffle: alike for every seed
            return tensors_digest(_told(zip(named, loaders, strict=True), labels))

    digest = call_code(read, where, lambda function: function())
    counts = {name: sum(map(len, batches)) for name, batches in labels.items()}
    for name, count in counts.items():
        if not count:
            raise UserError(f"{name}: has no sample; must have at least one")
    classes = count_classes([*chain.from_iterable(labels.values())], where)
    *sizes, _ = counts.values()
    *of_clients, of_test = loaders
    data = LoaderData(dict(enumerate(of_clients)), dict(enumerate(sizes)), of_test, classes)
    split = {"positions": tensors_digest([("sizes", torch.tensor(sizes))])}
    return data, {"data": {"tensors": str(digest)}, "split": split}


def _is_pair(part: object) -> bool:
    return inputs_and_labels(part) is not None


def _loader(part: object, batch_size: int, where: str, *, shuffle: bool) -> DataLoader[Any]:
    """Return a part's own loader, or one in the recipe's batches."""
    if isinstance(part, DataLoader):
        return part
    if pair := inputs_and_labels(part):
        part = TensorDataset(*map(torch.as_tensor, pair))
    size = getattr(part, "__len__", int)() if isinstance(part, Dataset) else 0
    if not isinstance(part, Dataset) or isinstance(part, IterableDataset) or not size:
        kind = printable(type(part).__name__)
        raise UserError(
            f"{where}: a {kind}; must be (inputs, labels), a DataLoader, or a Dataset that has a "
            "length and is not empty"
        )
    return DataLoader(part, size if batch_size == -1 else batch_size, shuffle=shuffle)


def _told(
    named: Iterable[tuple[str, DataLoader[Any]]], labels: dict[str, list[Tensor]]
) -> Iterable[tuple[str, Tensor]]:
    """Yield what the loaders give, by the client's name, and collect the labels."""
    for name, loader in named:
        for batch in loader:
            fits = isinstance(batch, tuple | list) and len(batch) == 2
            if not (fits and isinstance(batch[0], Tensor) and isinstance(batch[1], Tensor)):
                raise UserError(f"{name}: its batches must be (inputs, labels), tensors")
            inputs, own = batch
            if len(own) != len(inputs):
                raise UserError(f"{name}: {len(own)} labels, for {len(inputs)} inputs")
            if len(own):
                check_labels(own, f"{name}: labels")
            labels[name].append(own)
            yield from ((name, inputs), (name, own))
