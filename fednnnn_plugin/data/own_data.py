"""Custom data: arrays, or what a function returns; with a split of its own or without."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fednnnn_plugin.data.arrays import checked_inputs, is_array, kind_of
from fednnnn_plugin.data.images import ImageDataset, Pixels, Split, normalised_by_training_part
from fednnnn_plugin.data.labels import check_classes, checked_labels, count_classes
from fednnnn_plugin.data.natural import (
    NATURAL,
    Owners,
    are_owners,
    divide_by_owner,
    owner_names,
    owners_digest,
    owners_of,
)
from fednnnn_plugin.data.own_split import NO_SAMPLE, client_positions, members
from fednnnn_plugin.data.spec import DataSpec
from fednnnn_plugin.data.tables import with_arrays
from fednnnn_plugin.errors import UserError, printable
from fednnnn_plugin.fingerprint import Fingerprint, code_digests, tensors_digest
from fednnnn_plugin.seeds import generators_state, isolated_generators
from fednnnn_plugin.user_code import call_code, check_arguments, find_code

DATA = "data_args.dataset"
_TEST = "test_"  # what a test part is called by; of a client, with the client's name behind
_FOUR = "(train_inputs, train_labels, test_inputs, test_labels)"
_FORMS = (
    f"must be tensors or arrays {_FOUR}, and fifth, if you like, a list with each client's "
    "positions, or the owner of each sample; or (inputs, labels, owners); or (a list with each "
    "client's (inputs, labels), (test_inputs, test_labels))"
)


class UserData(NamedTuple):
    """What a user brought: data, or what their function returned; of one that drew, its code."""

    value: Any
    drawn_by: Mapping[str, str]

    def fingerprint(self, tensors: str, positions: str | None) -> Fingerprint:
        """Return the fingerprint of these digests: of all tensors, and of a split."""
        drawn = "drawn_" if self.drawn_by else ""
        of_data = {**self.drawn_by, f"{drawn}tensors": tensors}
        if positions is None:
            return {"data": of_data}
        return {"data": of_data, "split": {**self.drawn_by, f"{drawn}positions": positions}}


class _Part(NamedTuple):
    inputs: Tensor
    labels: Tensor


def bring_data(spec: DataSpec, given: object = None) -> UserData:
    """Return the data that were ``given``, or what a function returns for the spec's arguments.

    The function is ``given``, or imported as the ``module:name`` that the spec names.
    """
    where = f"{DATA}: {printable(spec.dataset)}"
    found = find_code(DATA, spec.dataset, given, allow_code=spec.allow_code)
    check_arguments(found, "data_args", spec.arguments)
    if given is not None and not callable(given):
        return UserData(with_arrays(given, where, spec.partition_by), {})
    with isolated_generators(spec.seed, "data"):
        before = generators_state()
        returned = call_code(found, where, **spec.arguments)
        drew = generators_state() != before
    returned = with_arrays(returned, where, spec.partition_by)
    return UserData(returned, code_digests(found) if drew else {})


def load_own_data(brought: UserData, spec: DataSpec) -> tuple[ImageDataset, Fingerprint]:
    """Check the data that a user brought, for the spec's loss; see `checked_labels`.

    The data are inputs and labels to train on, then to test on. Inputs are images, uint8
    [n, C, H, W], normalised by the training pixels; or of any shape [n, …], floating and finite,
    used as float32, or int64, such as tokens. Labels are classes, integers [n, …] from 0 on, of
    which -100 counts for nothing in a sequence; or numbers, floating [n, …], used as float32. A
    fifth value has the positions of each client in the training part, or the owner of each of its
    samples, with a sixth for the test part. Three values are inputs, labels and owners. Or they are
    two: the inputs and labels of each client, and those to test on, or a list of each client's.
    `divide_by_owner` follows the spec.
    """
    where, returned = f"{DATA}: {printable(spec.dataset)}", brought.value
    named = _parts(returned, where)
    checked = dict(zip(named, _checked(named, where, spec.loss), strict=True))
    names = tuple(map(str, range(count_classes([part.labels for part in checked.values()], where))))
    train = _joined([part for name, part in checked.items() if not name.startswith(_TEST)])
    tests = [part for name, part in checked.items() if name.startswith(_TEST)]
    pixels = Pixels(*train, *_joined(tests or [_Part(train.inputs[:0], train.labels[:0])]))
    tensors = tensors_digest(pixels._asdict().items())
    split, owners = Split(), _owners(returned, where, pixels)
    if len(returned) == 2:
        split = _split_of_parts(checked)
    elif len(returned) == 5 and returned[4] is not None and not owners:
        split = Split(client_positions(returned[4], where, len(train.labels)))
    of_split = owners_digest(owners) if owners else split.digest() if split.train else None
    if spec.partition_method == NATURAL:  # the recipe chooses among them, and says so
        owners = owners or owners_of(split, pixels)
        of_split = None if owners else of_split
    if owners:
        pixels, split = divide_by_owner(pixels, owners, spec)
    fingerprint = brought.fingerprint(tensors, of_split)
    return normalised_by_training_part(pixels, names, split), fingerprint


def _joined(parts: Sequence[_Part]) -> _Part:
    return parts[0] if len(parts) == 1 else _Part(*map(torch.cat, zip(*parts, strict=True)))


def _owners(returned: Sequence[Any], where: str, pixels: Pixels) -> Owners | None:
    """Return whose each sample is, where the data say it."""
    if len(returned) == 3:
        return Owners(owner_names(returned[2], f"{where}: owners", len(pixels.train_labels)))
    if len(returned) < 5 or not are_owners(returned[4]):
        return None
    train = owner_names(returned[4], f"{where}: owners", len(pixels.train_labels))
    if len(returned) == 5:
        return Owners(train)
    test = owner_names(returned[5], f"{where}: owners of the test", len(pixels.test_labels))
    if (train.dtype.kind == "U") != (test.dtype.kind == "U"):
        raise UserError(where, f"owners: {train.dtype}, and {test.dtype} of the test part")
    return Owners(train, test)


def _split_of_parts(parts: Mapping[str, _Part]) -> Split:
    """Return the split of each client's part, which are one after another, and of its own test."""
    clients = [name for name in parts if not name.startswith(_TEST)]
    counts = [len(parts[name].labels) for name in clients]
    train = torch.arange(sum(counts)).split(counts)
    if _TEST in parts:
        return Split(train)
    counts = [len(parts[_TEST + name].labels) if _TEST + name in parts else 0 for name in clients]
    return Split(train, torch.arange(sum(counts)).split(counts))


def inputs_and_labels(part: object) -> tuple[Any, Any] | None:
    """Return the two of a pair of arrays, or of a ``TensorDataset``; None of anything else."""
    pair = part.tensors if isinstance(part, TensorDataset) else part
    if isinstance(pair, tuple | list) and len(pair) == 2:
        inputs, labels = pair
        if is_array(inputs) and is_array(labels):
            return inputs, labels
    return None


def _parts(returned: Any, where: str) -> dict[str, tuple[Any, Any]]:
    """Return the inputs and labels of each part by what it is called; those to test on are last."""
    length = len(returned) if isinstance(returned, tuple | list) else 0
    if length == 3 and are_owners(returned[2]):
        return {"train_": tuple(returned[:2])}
    if length in (4, 5) or (length == 6 and are_owners(returned[4])):
        return {"train_": tuple(returned[:2]), _TEST: tuple(returned[2:4])}
    parts = _client_parts(returned[0], where) if length == 2 else {}
    test = inputs_and_labels(returned[1]) if parts else None
    tests = members(returned[1]) if parts else ()
    if test is None and len(tests) == len(parts) > 0:
        own = zip(parts, tests, strict=True)
        return parts | {
            _TEST + name: _pair(part, where, _TEST + name) for name, part in own if part is not None
        }
    if test is None:
        many = f" of {length}" if isinstance(returned, tuple | list) else ""
        raise UserError(where, f"a {printable(type(returned).__name__)}{many}; {_FORMS}")
    return {**parts, _TEST: test}


def _client_parts(clients: object, where: str) -> dict[str, tuple[Any, Any]]:
    parts = {}
    for client, part in enumerate(members(clients)):
        if part is None:
            raise UserError(where, f"client {client}: {NO_SAMPLE}")
        parts[f"client {client}: "] = _pair(part, where, f"client {client}: ")
    return parts


def _pair(part: object, where: str, name: str) -> tuple[Any, Any]:
    if pair := inputs_and_labels(part):
        return pair
    kind = printable(type(part).__name__)
    why = "; only a run takes Datasets and DataLoaders" * isinstance(part, Dataset | DataLoader)
    raise UserError(where, f"{name}a {kind}", f"must be (inputs, labels){why}")


def _checked(parts: Mapping[str, tuple[Any, Any]], where: str, loss: str) -> list[_Part]:
    """Check each part, and that all have inputs of one kind."""
    checked: list[_Part] = []
    for name, pair in parts.items():
        checked.append(checked_part(pair, where, name, loss))
        x, first = checked[-1].inputs, checked[0].inputs
        if (x.dtype, x.shape[1:]) != (first.dtype, first.shape[1:]):
            theirs = f"{next(iter(parts))}inputs are {kind_of(first)}"
            raise UserError(where, f"{name}inputs: {kind_of(x)}; {theirs}")
    return checked


def checked_part(pair: tuple[Any, Any], where: str, name: str = "", loss: str = "") -> _Part:
    """Check the inputs and labels of one part, and bring them to the CPU and to their dtypes."""
    inputs, labels = pair
    if name.startswith("client") and not any(map(_length, pair)):
        raise UserError(where, f"{name}{NO_SAMPLE}")
    x = checked_inputs(inputs, f"{where}: {name}inputs")
    y = checked_labels(labels, f"{where}: {name}labels", loss)
    if len(x) != len(y):
        order = f"; the order is {_FOUR}" if name == "train_" else ""
        raise UserError(where, f"{name}labels: {len(y)}, for {len(x)} {name}inputs{order}")
    check_classes(y, x, f"{where}: {name}labels", loss)
    return _Part(x, y)


def _length(array: Any) -> int:
    return len(array) if getattr(array, "ndim", 1) else 1
