"""A user's Datasets and DataLoaders, one for each client and one to test on, as batches."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from fednnnn_plugin.assembly.vocabulary import Tokens
from fednnnn_plugin.data.arrays import kind_of
from fednnnn_plugin.data.labels import check_classes, checked_labels, count_classes
from fednnnn_plugin.data.own_data import UserData, checked_part
from fednnnn_plugin.data.own_forms import (
    NO_SAMPLE,
    check_clients,
    client_tests,
    inputs_and_labels,
    members,
)
from fednnnn_plugin.data.tables import is_table
from fednnnn_plugin.errors import UserError, printable
from fednnnn_plugin.fingerprint import tensors_digest
from fednnnn_plugin.recipe import Recipe
from fednnnn_plugin.recipe.data_spec import loss_name
from fednnnn_plugin.rounds.loaders import Chained, LoaderData, PairLoader, follow_the_engine
from fednnnn_plugin.seeds import isolated_generators, torch_generator
from fednnnn_plugin.user_code import call_code, user_code


def has_loaders(brought: UserData) -> bool:
    """Tell whether a client's part or the test part is a ``Dataset`` or a ``DataLoader``.

    A ``TensorDataset`` of inputs and labels counts as its tensors.
    """
    parts = brought.value
    if not isinstance(parts, tuple | list) or len(parts) != 2:
        return False
    return any(
        is_table(part)
        or (isinstance(part, Dataset | DataLoader) and inputs_and_labels(part) is None)
        for part in (*members(parts[0]), *members(parts[1]), *parts)
    )


def load_loaders(brought: UserData, recipe: Recipe) -> tuple[LoaderData, Tokens]:
    """Return each part's own loader, or one that divides it into the recipe's batches.

    Where clients have test parts of their own, the test is all of them, one after another. All
    are gone through once: what they give is in the fingerprint. A loader draws from torch's
    global generator from then on.
    """
    where = f"data_args.dataset: {recipe.data_args.dataset}"
    given, test = brought.value
    if not (clients := members(given)):
        raise UserError(
            where,
            f"clients: {_kind(given)}",
            "must be a list with each client's part; a recipe divides arrays only",
        )
    check_clients(len(clients), recipe.train_args.client_num_in_total)
    size, loss = recipe.train_args.batch_size, loss_name(recipe)
    tests: Sequence[object] = ()
    if inputs_and_labels(test) is None:
        tests = client_tests(given, test, where)
    fraction, seed = recipe.data_args.validation_fraction, recipe.common_args.random_seed
    divided = _held_out(clients, fraction, seed, where, loss) if fraction else None
    train, own_tests = _loaders(clients, tests, size, where, loss)
    of_test = [*own_tests.values()] or [_loader(test, size, f"{where}: test", loss)]
    labels, tokens = list[list[Tensor]](), Tokens()
    with user_code(where), isolated_generators(0, "fingerprint"):  # alike for every seed
        # They may shuffle.
        digest = tensors_digest(_contents([*train, *of_test], labels, tokens, loss))
    classes = count_classes([_of_samples(batch) for batch in chain.from_iterable(labels)], where)
    sizes = [sum(map(len, batches)) for batches in labels[: len(clients)]]
    if divided:
        kept, held = divided
        sizes = [*map(len, kept)]
        train, own_tests = _loaders(kept, held, size, where, loss)
        of_test = [*own_tests.values()]
    split = tensors_digest([("sizes", torch.tensor(sizes))])
    data = LoaderData(
        dict(enumerate(train)),
        dict(enumerate(sizes)),
        Chained(of_test),
        classes,
        own_tests,
        brought.fingerprint(digest, split),
    )
    return data, tokens


def _loaders(
    clients: Sequence[object], tests: Sequence[object], size: int, where: str, loss: str
) -> tuple[list[PairLoader], dict[int, PairLoader]]:
    """Return the loaders of the clients' parts, and of what each is tested on, where it is."""
    train = [
        _loader(part, size, f"{where}: client {k}", loss, of_client=True)
        for k, part in enumerate(clients)
    ]
    own_tests = {
        k: _loader(part, size, f"{where}: test of client {k}", loss)
        for k, part in enumerate(tests if len(tests) == len(clients) else ())
        if part is not None
    }
    return train, own_tests


def _held_out(
    clients: Sequence[object], fraction: float, seed: int, where: str, loss: str
) -> tuple[list[Subset[Any]], list[Subset[Any] | None]]:
    """Divide clients' Datasets into what they train on, and what is held out of each, if any.

    Of a client's n samples ``fraction * n`` are drawn, rounded, and at most n - 1.
    """
    kept, held = list[Subset[Any]](), list[Subset[Any] | None]()
    for client, part in enumerate(clients):
        if isinstance(part, DataLoader):
            raise UserError(
                "data_args.validation_fraction",
                fraction,
                f"must be 0, as nothing can be held out of a DataLoader: client {client}: give "
                "its Dataset",
            )
        of: Any = _loader(part, 1, f"{where}: client {client}", loss, of_client=True).loader.dataset
        order = torch_generator(seed, "validation", client=client)
        drawn = torch.randperm(len(of), generator=order)
        count = min(round(fraction * len(of)), len(of) - 1)
        kept.append(Subset(of, sorted(drawn[count:].tolist())))
        held.append(Subset(of, sorted(drawn[:count].tolist())) if count else None)
    if not any(held):
        raise UserError(
            "data_args.validation_fraction", f"{fraction}: of no client's samples one is held out"
        )
    return kept, held


def _loader(
    part: object, batch_size: int, where: str, loss: str, *, of_client: bool = False
) -> PairLoader:
    if isinstance(part, DataLoader):
        follow_the_engine(part)
        return PairLoader(part, where)
    if pair := inputs_and_labels(part):
        part = TensorDataset(*checked_part(pair, where, loss=loss))
    of: Any = part
    is_set = isinstance(part, Dataset) and not isinstance(part, IterableDataset)
    if part is not None and not ((is_set or is_table(part)) and hasattr(part, "__len__")):
        raise UserError(
            where,
            _kind(part),
            "must be (inputs, labels), a DataLoader, or a Dataset that has a length",
        )
    count = 0 if part is None else call_code(len, where, part)
    if not count:
        raise UserError(where, NO_SAMPLE if of_client else "has no sample")
    size = count if batch_size == -1 else batch_size
    return PairLoader(DataLoader(of, size, shuffle=of_client), where)


def _contents(
    loaders: Sequence[PairLoader], labels: list[list[Tensor]], tokens: Tokens, loss: str
) -> Iterator[tuple[str, Tensor]]:
    """Yield what the loaders give, by whose it is; collect the labels, and tokens' ranges."""
    for loader in loaders:
        where, inputs, own = loader.where, None, list[Tensor]()
        for batch in loader:
            inputs, given = _checked_batch(batch, where, loss)
            if len(given):
                own.append(given.clone())  # a worker's tensor holds a file descriptor
            tokens.add(where.rpartition(": ")[2], inputs)
            yield from ((where, inputs), (where, given))
        if inputs is None or not own:
            raise UserError(where, _why_empty(loader.loader))
        if len({batch.shape[1:] for batch in own}) == 1:  # else each is padded to its own length
            check_classes(torch.cat(own), inputs, f"{where}: labels", loss)
        labels.append(own)


def _of_samples(labels: Tensor) -> Tensor:
    """Return the largest of each sample's several classes, of which batches have any number."""
    if labels.is_floating_point() or labels.ndim == 1:
        return labels
    return labels.amax([*range(1, labels.ndim)], keepdim=True)


def _checked_batch(batch: Any, where: str, loss: str) -> tuple[Tensor, Tensor]:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise UserError(
            where,
            f"its batches are each {_kind(batch)}",
            "must be (inputs, labels), two tensors: return these alone",
        )
    inputs, labels = batch
    if not isinstance(inputs, Tensor):
        several = isinstance(inputs, tuple | list | Mapping)
        hint = ": stack or join them, and take them apart in the model's forward" if several else ""
        given = f"the inputs of a batch are {_kind(inputs)}"
        raise UserError(where, given, f"must be one tensor{hint}")
    if inputs.dtype == torch.uint8:
        raise UserError(
            where,
            f"inputs: {kind_of(inputs)}",
            "must be floating or int64 in and beside Datasets and DataLoaders, as only arrays "
            "alone are normalised: give x.float() / 255",
        )
    are_text = isinstance(labels, tuple | list) and labels and isinstance(labels[0], str)
    if not isinstance(labels, Tensor) and not are_text:
        raise UserError(where, f"the labels of a batch are {_kind(labels)}", "must be a tensor")
    if len(labels) != len(inputs):
        raise UserError(where, f"{len(labels)} labels, for {len(inputs)} inputs")
    if not len(labels):
        return inputs, labels
    return inputs, checked_labels(labels, f"{where}: labels", loss)


def _kind(value: object) -> str:
    """Return what a value is, such as ``a list of 3``."""
    many = f" of {len(value)}" if isinstance(value, tuple | list | Mapping) else ""
    return f"a {printable(type(value).__name__)}{many}"


def _why_empty(loader: DataLoader[Any]) -> str:
    """Say why a loader gave no sample."""
    count = len(loader.dataset) if hasattr(loader.dataset, "__len__") else 0
    if loader.drop_last and loader.batch_size and 0 < count < loader.batch_size:
        return (
            f"its loader gives no batch: its {count} samples are fewer than a batch of "
            f"{loader.batch_size} with drop_last=True: set drop_last=False, or leave the client out"
        )
    of = f" of its {count}" if count else ""
    return f"its loader gives no sample{of}: must give at least one"
