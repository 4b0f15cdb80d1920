"""Custom data: arrays, or what a function returns; with a split of its own or without."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fednnnn_plugin.data.arrays import checked_inputs, kind_of
from fednnnn_plugin.data.images import (
    ImageDataset,
    Parts,
    Samples,
    Split,
    channel_moments,
    joined,
    packed,
)
from fednnnn_plugin.data.labels import check_classes, checked_labels, class_numbers
from fednnnn_plugin.data.natural import (
    NATURAL,
    checked_owners,
    divide_by_owner,
    owners_digest,
    owners_of,
)
from fednnnn_plugin.data.own_forms import (
    FOUR,
    TEST,
    TRAIN,
    Pair,
    client_positions,
    take_apart,
)
from fednnnn_plugin.data.spec import DataSpec
from fednnnn_plugin.data.tables import with_arrays
from fednnnn_plugin.errors import UserError, printable
from fednnnn_plugin.fingerprint import Fingerprint, code_digests
from fednnnn_plugin.seeds import generators_state, isolated_generators
from fednnnn_plugin.user_code import call_code, check_arguments, find_code

DATA = "data_args.dataset"


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


def bring_data(spec: DataSpec, given: object = None) -> UserData:
    """Return the data that were ``given``, or what a function returns for the spec's arguments.

    The function is ``given``, or imported as the ``module:name`` that the spec names.
    """
    where = f"{DATA}: {printable(spec.dataset)}"
    found = find_code(DATA, spec.dataset, given, allow_code=spec.allow_code)
    check_arguments(found, "data_args", spec.arguments)
    value, drew = given, False
    if given is None or callable(given):
        with isolated_generators(spec.seed, "data"):
            before = generators_state()
            value = call_code(found, where, **spec.arguments)
            drew = generators_state() != before
    value = with_arrays(value, where, spec.partition_by)
    return UserData(value, code_digests(found) if drew else {})


def load_own_data(brought: UserData, spec: DataSpec) -> ImageDataset:
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
    where = f"{DATA}: {printable(spec.dataset)}"
    given = take_apart(brought.value, where)
    checked = checked_parts({**given.train, **given.test}, where, spec.loss)
    names = class_numbers([part.labels for part in checked.values()], where)
    train = joined([checked[name] for name in given.train])
    test = [checked[name] for name in given.test if name in checked] or [train.at(slice(0))]
    parts = Parts(train, joined(test))
    tensors = parts.digest()
    owners, split = checked_owners(given.owners, where, parts), Split()
    if TRAIN not in given.train:
        tests = () if TEST in given.test else _in_turn(map(checked.get, given.test))
        split = Split(_in_turn(map(checked.get, given.train)), tests)
    elif given.positions is not None:
        split = Split(client_positions(given.positions, where, len(train.labels)))
    of_split = owners_digest(owners) if owners else split.digest() if split.train else None
    if spec.partition_method == NATURAL:  # the recipe chooses among them, and says so
        if split.train and not owners:
            held, positions = packed(parts.train, split.train)  # not those of nobody
            whole = parts._replace(train=held)
            if owners := owners_of(Split(positions, split.test), whole):
                parts = whole
        of_split = None if owners else of_split
    if owners:
        parts, split = divide_by_owner(parts, owners, spec)
    fingerprint = brought.fingerprint(tensors, of_split)
    return ImageDataset(parts, names, *channel_moments(parts.train.inputs), split, fingerprint)


def _in_turn(parts: Iterable[Samples | None]) -> tuple[Tensor, ...]:
    """Return the positions of parts that are one after another."""
    counts = [0 if part is None else len(part.labels) for part in parts]
    return torch.arange(sum(counts)).split(counts)


def checked_parts(pairs: Mapping[str, Pair | None], where: str, loss: str) -> dict[str, Samples]:
    """Check each part that there is, and that all have inputs of one kind."""
    checked: dict[str, Samples] = {}
    columns: list[object] | None = None
    for name, pair in pairs.items():
        if pair is None:
            continue
        checked[name] = checked_part(pair, where, name, loss)
        table: Any = pair[0]  # pandas's columns are names, Arrow's are values
        names: Any = getattr(table, "column_names", None) or getattr(table, "columns", ())
        own = list(names)
        if own and all(isinstance(each, str) for each in own):  # places count, not these names
            columns = columns or own
            if own != columns:
                theirs = f"{next(iter(checked))}inputs have {printable(columns)}"
                raise UserError(where, f"{name}inputs: columns {printable(own)}; {theirs}")
        x, first = checked[name].inputs, next(iter(checked.values())).inputs
        if (x.dtype, x.shape[1:]) != (first.dtype, first.shape[1:]):
            theirs = f"{next(iter(checked))}inputs are {kind_of(first)}"
            raise UserError(where, f"{name}inputs: {kind_of(x)}; {theirs}")
    return checked


def checked_part(pair: Pair, where: str, name: str = "", loss: str = "") -> Samples:
    """Check the inputs and labels of one part, and bring them to the CPU and to their dtypes."""
    inputs, labels = pair
    x = checked_inputs(inputs, f"{where}: {name}inputs")
    y = checked_labels(labels, f"{where}: {name}labels", loss)
    if len(x) != len(y):
        order = f"; the order is {FOUR}" if name == TRAIN else ""
        raise UserError(where, f"{name}labels: {len(y)}, for {len(x)} {name}inputs{order}")
    check_classes(y, x, f"{where}: {name}labels", loss)
    return Samples(x, y)
