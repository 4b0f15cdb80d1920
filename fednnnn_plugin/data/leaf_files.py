"""The JSON files of a LEAF folder (Caldas et al., 2018): users, and the samples of each."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from fednnnn_plugin.data.leaf_samples import as_numbers
from fednnnn_plugin.errors import UserError, printable, reason
from fednnnn_plugin.files import MEMORY, read_regular

_LAYOUTS = "train/*.json and test/*.json, or all_data/*.json, or *.json"


class LeafPart(NamedTuple):
    """The samples of a part: what a sample is, its label, and whose it is."""

    inputs: list[Any]
    labels: list[Any]
    users: list[str]


def read_leaf(folder: Path, where: str) -> tuple[LeafPart, LeafPart]:
    """Read the samples to train on and those to test on; the latter are none in ``all_data``.

    They are in the order of the files' names, and of the users in a file.
    """
    train, test = (sorted((folder / part).glob("*.json")) for part in ("train", "test"))
    if not (train and test):
        whole = sorted((folder / "all_data").glob("*.json")) or sorted(folder.glob("*.json"))
        if not whole:
            raise UserError(where, f"has no LEAF files: looked for {_LAYOUTS}")
        train, test = whole, []
    return _read(train), _read(test)


def _read(paths: list[Path]) -> LeafPart:
    part = LeafPart([], [], [])
    for path in paths:
        for user, inputs, labels in _users_of(path):
            part.inputs.extend(inputs)
            part.labels.extend(labels)
            part.users.extend([user] * len(labels))
    return part


def _users_of(path: Path) -> Iterator[tuple[str, list[Any], list[Any]]]:
    where = printable(path)
    try:
        content = json.loads(read_regular(path, MEMORY // 4))
    except (ValueError, RecursionError) as error:
        raise UserError(where, f"not JSON: {reason(error)}") from error
    if not isinstance(content, dict):
        content = {}
    users, counts = content.get("users"), content.get("num_samples")
    samples = content.get("user_data")
    if not (isinstance(users, list) and isinstance(counts, list) and isinstance(samples, dict)):
        raise UserError(
            where, allowed="must have the lists users and num_samples, and the mapping user_data"
        )
    names = [*map(str, users)]
    if len(names) != len(counts):
        raise UserError(where, f"num_samples: {len(counts)} numbers, for {len(names)} users")
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise UserError(where, f"users: {printable(twice[0])} is there twice")
    for user, count in zip(names, counts, strict=True):
        own = samples.get(user)
        x, y = (own.get("x"), own.get("y")) if isinstance(own, dict) else (None, None)
        if not (isinstance(x, list) and isinstance(y, list) and len(x) == len(y) == count):
            raise UserError(
                where,
                f"user {printable(user)}: user_data must have as many samples in its lists x and "
                "y as num_samples says",
            )
        yield user, _compact(x), y


def _compact(samples: list[Any]) -> list[Any]:
    """Return numbers as an array for each sample, in a tenth of the memory; others as they are."""
    with suppress(UserError):
        return list(as_numbers(samples, ""))
    return samples
