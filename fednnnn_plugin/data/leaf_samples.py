"""LEAF's samples as arrays: numbers, pixels, and texts as the numbers of their characters."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fednnnn_plugin.data.image_files import check_no_size, decoded
from fednnnn_plugin.data.image_tree import SUFFIXES
from fednnnn_plugin.data.spec import DataSpec
from fednnnn_plugin.errors import UserError, printable, reason, shown
from fednnnn_plugin.files import MEMORY

Array = NDArray[Any]

_AT_ONCE = 4_096
_IMAGE_FOLDERS = ("", "images", "raw/img_align_celeba")  # the last is where LEAF keeps CelebA's


def as_arrays(
    inputs: list[Any], labels: Sequence[Any], folder: Path, where: str, spec: DataSpec
) -> tuple[Tensor | Array, Array, tuple[str, ...]]:
    """Return the inputs, the labels, and the names of classes that are texts.

    A sample is numbers, pixels, the name of an image file, or a text.
    """
    inputs = _chosen_field(inputs, spec.arguments.get("input_column"), where)
    if _are_texts(inputs) and all(name.lower().endswith(SUFFIXES) for name in inputs):
        images = _named_images(inputs, folder, spec.data_cache_dir, spec.image_size, where)
        return images, *_as_classes(labels, where)
    if _are_texts(inputs):
        check_no_size(spec.image_size, where)
        return _as_tokens(inputs, labels, where)
    numbers = as_numbers(inputs, f"{where}: samples")
    if spec.image_size:
        numbers = _as_pixels(numbers, spec.image_size)
    return numbers, *_as_classes(labels, where)


def _are_texts(values: Sequence[Any]) -> bool:
    """Tell whether all values are text."""
    return all(isinstance(value, str) for value in values)


def _chosen_field(inputs: list[Any], field: object, where: str) -> list[Any]:
    """Return of each sample that is a list, with a text in it, the value in one place.

    LEAF's tweets are such lists, whose text is in place 4.
    """
    first = inputs[0]
    rows = isinstance(first, list) and any(isinstance(value, str) for value in first)
    if not rows:
        if field is not None:
            raise UserError("data_args.input_column", f"{shown(field)}: its samples are no lists")
        return inputs
    if not isinstance(field, int) or not all(
        isinstance(row, list) and -len(row) <= field < len(row) for row in inputs
    ):
        raise UserError(
            "data_args.input_column",
            f"{shown(field)}: each sample in {where} is a list of {len(first)}",
            "must be the place of its text in it, from 0 on",
        )
    return [row[field] for row in inputs]


def _as_tokens(
    texts: Sequence[str], labels: Sequence[Any], where: str
) -> tuple[Array, Array, tuple[str, ...]]:
    """Return tokens int64 [n, length], the labels, and the names of their classes if they are text.

    A token is the place of a character among the sorted characters of all texts, where 0 stands
    for the end of shorter texts. Labels that are each one character are numbered with them.
    """
    codes = _character_codes(texts, where)
    if not _are_texts(labels) or any(len(label) != 1 for label in labels):
        return np.searchsorted(np.unique(codes), codes), *_as_classes(labels, where)
    ends = _character_codes(labels, where)[:, 0]
    known = np.unique(np.concatenate((codes.ravel(), ends)))
    classes = tuple(map(chr, known))
    return np.searchsorted(known, codes), np.searchsorted(known, ends), classes


def _character_codes(texts: Sequence[str], where: str) -> Array:
    """Return the code of each character, uint32 [n, length]; 0 where a text has ended."""
    needed = 4 * len(texts) * max(map(len, texts))
    if needed > MEMORY // 4:
        raise UserError(
            where,
            f"its texts need {needed / 2**30:.2f} GiB, as many characters each as the longest",
            "cut long texts, or leave them out",
        )
    array = np.asarray(texts)
    return array.view(np.uint32).reshape(len(texts), -1)


def as_numbers(inputs: list[Any], where: str) -> Array:
    """Return numbers [n, ...]: float32 if any has a fraction part, else int64."""
    try:
        array = np.asarray(inputs)
        if array.dtype.kind not in "if":
            raise ValueError(f"{array.dtype} of {list(array.shape)}")
    except (ValueError, OverflowError) as error:
        raise UserError(where, reason(error), "must be numbers of one shape, or texts") from error
    return array.astype(np.float32 if array.dtype.kind == "f" else np.int64, copy=False)


def _as_pixels(numbers: Array, size: tuple[int, int]) -> Array:
    """Return rows of numbers as images, uint8 [n, C, H, W]: of 0 to 1, or integers of 0 to 255."""
    height, width = size
    channels, rest = divmod(int(np.prod(numbers.shape[1:])), height * width)
    if rest or channels not in (1, 3):
        raise UserError(
            "data_args.image_size",
            f"[{height}, {width}]: a sample has {list(numbers.shape[1:])} numbers",
            "must be height * width of them, or 3 times as many",
        )
    most = 1 if numbers.dtype.kind == "f" else 255
    if not (numbers.min() >= 0 and numbers.max() <= most):
        raise UserError(
            "data_args.image_size",
            f"pixels of {numbers.min():.6g} to {numbers.max():.6g}",
            "must be of 0 to 1, or whole numbers of 0 to 255; leave it out to use the numbers as "
            "they are",
        )
    pixels = np.empty(numbers.shape, np.uint8)
    for first in range(0, len(numbers), _AT_ONCE):  # a whole set would be in memory three times
        rows = slice(first, first + _AT_ONCE)
        pixels[rows] = np.rint(numbers[rows] * (255 // most))
    return pixels.reshape(len(pixels), height, width, channels).transpose(0, 3, 1, 2)


def _named_images(
    names: Sequence[str], folder: Path, cache_dir: Path, size: tuple[int, int] | None, where: str
) -> Tensor:
    """Decode the files of these names, uint8 [n, C, H, W]; each file is below the folder."""
    if unsafe := [name for name in names if Path(name).is_absolute() or ".." in Path(name).parts]:
        raise UserError(where, printable(unsafe[0]), "must be a file below the folder")
    places = [folder / place for place in _IMAGE_FOLDERS]
    home = next((place for place in places if (place / names[0]).is_file()), None)
    if home is None:
        looked = ", ".join(printable(place) for place in places)
        raise UserError(where, f"{printable(names[0])}: no such file; looked in {looked}")
    return decoded([home / name for name in names], size, cache_dir)


def _as_classes(labels: Sequence[Any], where: str) -> tuple[Array, tuple[str, ...]]:
    """Return labels as numbers, and the names of their classes where they are texts.

    Whole numbers are classes. Texts are numbered in sorted order.
    """
    if _are_texts(labels):
        names, classes = np.unique(np.asarray(labels), return_inverse=True)
        return classes, tuple(map(str, names))
    numbers = as_numbers(list(labels), f"{where}: labels")
    whole = numbers.dtype.kind == "f" and (numbers == np.rint(numbers)).all()
    return numbers.astype(np.int64) if whole else numbers, ()
