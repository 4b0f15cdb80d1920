"""Data sets of the Hugging Face hub, or in its formats on disk."""

import os
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fednnnn_plugin.data.divided import divided_dataset
from fednnnn_plugin.data.hub_files import read_tables
from fednnnn_plugin.data.image_files import Encoded, check_no_size, decoded
from fednnnn_plugin.data.images import ImageDataset, Parts
from fednnnn_plugin.data.labels import class_numbers
from fednnnn_plugin.data.natural import NATURAL, Owners, checked_owners
from fednnnn_plugin.data.own_data import checked_parts
from fednnnn_plugin.data.sets import HUB_NAME, named_dataset
from fednnnn_plugin.data.spec import DataSpec
from fednnnn_plugin.data.tables import LABELS, column, column_values, named_column
from fednnnn_plugin.errors import UserError, printable, shown

_PARTS = ("train: ", "test: ")
_ARGUMENTS = ("input_column", "label_column", "revision", "subset", "split", "test_split")


@named_dataset(HUB_NAME, arguments=_ARGUMENTS)
def _load(spec: DataSpec) -> ImageDataset:
    """Read the splits of a table: images, or numbers such as tokens, and their classes."""
    where = f"data_args.dataset: {printable(spec.dataset)}"
    for key, value in spec.arguments.items():
        if not isinstance(value, str):
            raise UserError(f"data_args.{key}", shown(value), "must be text")
    arguments = {key: str(value) for key, value in spec.arguments.items()}
    tables, place = read_tables(spec, arguments, where)
    inputs_name, labels_name = _columns(tables[0], arguments, spec.partition_by, where)
    inputs = _inputs(tables, inputs_name, place, spec, where)
    labels, names = _labels(tables, labels_name, where)
    pairs = zip(inputs, labels, strict=True)
    checked = checked_parts(dict(zip(_PARTS, pairs, strict=False)), where, spec.loss)
    parts = [*checked.values()]
    if not names or parts[0].labels.is_floating_point():  # of numbers there are no classes
        names = class_numbers([part.labels for part in parts], where)
    both = Parts(parts[0], parts[-1] if len(parts) > 1 else parts[0].at(slice(0)))
    return divided_dataset(both, names, _owners(tables, both, spec, where), spec)


def _columns(
    table: Any, arguments: dict[str, str], owners: str | None, where: str
) -> tuple[str, str]:
    """Return the columns of inputs and labels that are named; else those that can only be meant."""
    names = table.column_names
    named_column(owners, "data_args.partition_by", table, where)
    inputs, labels = (
        named_column(arguments.get(key), f"data_args.{key}", table, where)
        for key in ("input_column", "label_column")
    )
    if labels is None:
        labels = _only([name for name in names if name.lower() in LABELS], "label_column", names)
    if inputs is None:
        rest = [name for name in names if name not in (labels, owners)]
        inputs = _only(rest, "input_column", names)
    is_file = import_module("datasets.features.features").require_decoding
    for name in filter(None, (labels, owners, None if _are_images(table, inputs) else inputs)):
        if is_file(table.features[name]):  # which the library would read from anywhere
            must = "must have numbers or texts; images may be data_args.input_column"
            raise UserError(f"{where}: column {printable(name)}", "has files", must)
    return inputs, labels


def _are_images(table: Any, name: str) -> bool:
    return type(table.features[name]).__name__ == "Image"


def _only(found: list[str], key: str, names: list[str]) -> str:
    if len(found) != 1:
        columns = printable(", ".join(names))
        raise UserError(f"data_args.{key}", "missing", f"must be one of the columns {columns}")
    return found[0]


def _inputs(
    tables: list[Any], name: str, place: Path, spec: DataSpec, where: str
) -> Sequence[Tensor | NDArray[Any]]:
    """Return the inputs of each table; images of all have as many channels."""
    if not _are_images(tables[0], name):
        check_no_size(spec.image_size, f"{where}: column {printable(name)}")
        return [column_values(table, name, where) for table in tables]
    if not all(map(len, tables)):
        raise UserError(where, "has a split without a sample")
    as_stored = type(tables[0].features[name])(decode=False)
    hubs = (folder.parent for folder in place.parents if folder.name == "snapshots")
    roots = (place, *(hub / "blobs" for hub in hubs))
    files = [
        _image_file(file, roots, f"{where}: {part}{name} {i}")
        for part, table in zip(_PARTS, tables, strict=False)
        for i, file in enumerate(table.cast_column(name, as_stored)[name])
    ]
    return decoded(files, spec.image_size, spec.data_cache_dir).split([*map(len, tables)])


def _image_file(file: Any, roots: Sequence[Path], where: str) -> Path | Encoded:
    """Return what a row has of its image: the content, or the path of a file of the data set's.

    A data set may name any path, also by a link. Taken are regular files below the folder where it
    lies, the first of ``roots``; the links of a hub's snapshot lead to the other, its blobs.
    """
    content, path = (file["bytes"], file["path"]) if file else (None, None)
    if content is not None:
        return Encoded(where, content)
    with suppress(OSError, ValueError):  # no file can have this name
        own = Path(os.path.normpath(path or ""))
        found = Path(os.path.realpath(own))
        is_own = own.is_relative_to(roots[0]) and any(map(found.is_relative_to, roots))
        if is_own and found.is_file():
            return own
    raise UserError(
        where,
        "missing" if path is None else shown(path),
        "must be an image in the table, or, where the data set is a folder, the path of a file in "
        "it; links must not lead out of it",
    )


def _labels(tables: list[Any], name: str, where: str) -> tuple[list[NDArray[Any]], tuple[str, ...]]:
    """Return the labels of each table, and their names; texts are numbered in sorted order."""
    values = [column(table, name) for table in tables]
    feature = tables[0].features[name]
    if type(feature).__name__ == "ClassLabel":
        return values, tuple(feature.names)
    kinds = {part.dtype.kind for part in values}
    if kinds == {"b"}:
        return [part.astype(np.int64) for part in values], ("False", "True")
    if not kinds <= {*"bOU"}:
        return values, ()
    texts = np.concatenate(values)
    if others := [value for value in texts.flat if not isinstance(value, str)]:
        of, must = f"{where}: column {printable(name)}", "must have a text or a number in each row"
        lacking = any(value is None for value in others)  # beside what is true or false
        raise UserError(of, f"has {shown(None if lacking else others[0])}", must)
    known, numbers = np.unique(texts.astype(np.str_), return_inverse=True)
    return np.split(numbers, [len(values[0])])[: len(values)], tuple(map(str, known))


def _owners(tables: list[Any], parts: Parts, spec: DataSpec, where: str) -> Owners | None:
    by = spec.partition_by
    if spec.partition_method != NATURAL:
        return None
    if by is None:
        columns = printable(", ".join(tables[0].column_names))
        raise UserError(
            "data_args.partition_by",
            f"missing; partition_method natural needs the column with the owners, one of {columns}",
        )
    whose = [column(table, by) for table in tables if by in table.column_names]
    return checked_owners(whose, f"{where}: {printable(by)}", parts)
