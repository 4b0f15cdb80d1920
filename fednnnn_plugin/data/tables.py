"""Data sets of the library ``datasets`` as arrays; it is the user's, and never imported here."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from fednnnn_plugin.data.image_files import COLOUR, GREY
from fednnnn_plugin.data.images import has_channels_last
from fednnnn_plugin.errors import UserError, did_you_mean, printable

#: Under which of these names a table, or a batch that is a mapping, has its labels.
LABELS = ("label", "labels", "target", "targets", "y")


def inputs_and_labels_of(names: Collection[Any], where: str) -> tuple[Any, Any]:
    """Return the name of the inputs and that of the labels, where they are the only two."""
    labels = [name for name in names if str(name).lower() in LABELS]
    inputs = [name for name in names if name not in labels]
    if len(labels) != 1 or len(inputs) != 1:
        found = printable(", ".join(map(repr, names)))
        raise UserError(
            where,
            f"has {found}",
            f"must have the labels under one of {', '.join(LABELS)}, and the inputs under one "
            "other name: leave the others out, or give (inputs, labels)",
        )
    return inputs[0], labels[0]


def is_table(value: object) -> bool:
    """Tell whether a value is a ``datasets.Dataset``."""
    of = type(value)
    return of.__module__.partition(".")[0] == "datasets" and of.__name__ == "Dataset"


def is_column(value: object) -> bool:
    """Tell whether a value is a ``datasets.Column``, which is read when it is indexed."""
    of = type(value)
    return of.__module__.partition(".")[0] == "datasets" and of.__name__ == "Column"


def whole_column(value: Any) -> Any:
    """Return all items of a column as an array; other values as they are."""
    return np.asarray(value[:]) if is_column(value) else value


def with_arrays(value: Any, where: str, owners: str | None = None) -> Any:
    """Return a user's data with their tables as inputs and labels.

    A mapping of a table ``train`` and another ``test``, and the pair of these, become the four
    arrays; with a column of ``owners``, which ``test`` may lack, also whose each sample is, as may
    one table. A client's table with a transform of its own stays: it is read batch by batch.
    """
    if isinstance(value, Mapping) and {"train", "test"} <= value.keys():
        value = (value["train"], value["test"])
    if owners and is_table(value):
        return _arrays(value, where, owners)
    is_pair = isinstance(value, tuple | list) and len(value) == 2
    if is_pair and all(map(is_table, value)):
        train = _arrays(value[0], f"{where}: train", owners)
        of_test = owners if owners in value[1].column_names else None
        test = _arrays(value[1], f"{where}: test", of_test)
        return (*train[:2], *test[:2], *train[2:], *test[2:])
    if owners:
        raise UserError(
            "data_args.partition_by",
            f"{printable(owners)}: {where}: has no columns, as it is no data set of the library "
            "datasets",
            "leave it out, and return the owners beside the data",
        )
    if not is_pair or is_table(value[0]):
        return value
    clients, test = value
    return _parts(clients, f"{where}: client"), _part(
        _parts(test, f"{where}: test"), f"{where}: test"
    )


def _parts(given: Any, where: str) -> Any:
    """Return the parts of a list, or of a mapping from names, with its tables as arrays."""
    if isinstance(given, Mapping):
        return {name: _part(part, f"{where} {k}") for k, (name, part) in enumerate(given.items())}
    if isinstance(given, tuple | list) and any(map(is_table, given)):
        return [_part(part, f"{where} {k}") for k, part in enumerate(given)]
    return given


def _part(part: Any, where: str) -> Any:
    return _arrays(part, where) if is_table(part) and not _has_transform(part) else part


def _has_transform(table: Any) -> bool:
    return bool(table.format["type"] == "custom")


def _arrays(table: Any, where: str, owners: str | None = None) -> tuple[Any, ...]:
    if _has_transform(table):
        raise UserError(
            where,
            "has a transform, which would not be applied: whole columns are read",
            "apply it with map(), or give a list with the table of each client",
        )
    named_column(owners, "data_args.partition_by", table, where)
    whose = () if owners is None else (column(table, owners),)
    form = table.format  # which may show some of the columns only
    shown = table.column_names if form["output_all_columns"] else form["columns"]
    names = [name for name in shown if name != owners]
    name, of_labels = inputs_and_labels_of(names, where)
    return column_values(table, name, where), column(table, of_labels), *whose


def column_values(table: Any, name: str, where: str) -> Any:
    """Return a column's numbers: integers, such as tokens, as int64; images as ``[n, C, H, W]``.

    Images keep their dtype; uint8 arrays of three dimensions or four are images too.
    """
    feature = table.features[name]
    are_images = type(feature).__name__ == "Image"
    inputs = _pixels(table, name) if are_images else column(table, name)
    if inputs.dtype.kind not in "biuf":
        what = type(inputs.flat[0]).__name__ if inputs.size else "nothing"
        raise UserError(
            where,
            f"column {printable(name)}: {what} of several sizes, or text",
            "must be numbers of one shape: resize images, or make tokens of texts, padded to one "
            "length",
        )
    if are_images:
        return inputs[:, None] if inputs.ndim == 3 else inputs.transpose(0, 3, 1, 2)
    if inputs.dtype.kind not in "iu":
        return inputs
    while hasattr(feature, "feature"):
        feature = feature.feature
    if getattr(feature, "dtype", "") != "uint8" or inputs.ndim not in (3, 4):
        return inputs.astype(np.int64, copy=False)
    images = inputs.astype(np.uint8)  # which the library reads as int64
    if images.ndim == 3:
        return images[:, None]
    return images.transpose(0, 3, 1, 2) if has_channels_last(images.shape) else images


def _pixels(table: Any, name: str) -> Any:
    """Return a column's images ``[n, H, W]`` if all are grey, else ``[n, H, W, 3]``, as of files.

    Those of a mode that the feature names, or of more than 8 bits, as they are; objects where no
    array holds them all.
    """
    images = table.with_format(None)[name][:]
    modes = {getattr(image, "mode", None) for image in images}
    if table.features[name].mode is None and modes <= {*GREY, *COLOUR}:
        images = [image.convert("L" if modes <= {*GREY} else "RGB") for image in images]
    arrays = [np.asarray(image) for image in images]
    alike = len({(array.dtype, array.shape) for array in arrays}) == 1
    return np.stack(arrays) if alike else np.fromiter(arrays, np.object_, len(arrays))


def named_column(name: str | None, key: str, table: Any, where: str) -> str | None:
    """Return a name that a recipe's key has for a column, which must be there."""
    if name is not None and name not in table.column_names:
        hint = did_you_mean(name, table.column_names)
        found = printable(", ".join(table.column_names))
        raise UserError(key, f"{printable(name)}: {where}: has the columns {found}{hint}")
    return name


def column(table: Any, name: str) -> Any:
    """Return a column of a table as an array."""
    return np.asarray(table.with_format("numpy")[name][:])
