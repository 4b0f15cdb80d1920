"""Labelled images in MNIST's format, ``NAME/raw/*-ubyte``, compressed or not."""

import gzip
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fednnnn_plugin.data.images import Parts, Samples
from fednnnn_plugin.data.sources import check_file
from fednnnn_plugin.errors import UserError, printable, reason

_MAX_BYTES = 600_000_000  # of a file, unpacked; EMNIST's largest has 547 million


def idx_names(name: str, split: str) -> list[str]:
    """Return the four files of a data set, the training images first; those of EMNIST by split."""
    parts = (f"emnist-{split}-train", f"emnist-{split}-test") if split else ("train", "t10k")
    kinds = ("images-idx3", "labels-idx1")
    return [f"{name}/raw/{part}-{kind}-ubyte" for part in parts for kind in kinds]


def missing_files(folder: Path, names: Sequence[str]) -> list[str]:
    """Return which of the files are not there in either form."""
    return [n for n in names if not (folder / n).is_file() and not (folder / f"{n}.gz").is_file()]


def read_parts(folder: Path, names: Sequence[str], classes: int) -> Parts:
    """Read the four files: 28 × 28 images, uint8 [n, 1, 28, 28], and labels, int64 [n]."""
    return Parts(*(_part(folder, names[i], names[i + 1], classes) for i in (0, 2)))


def _part(folder: Path, images_name: str, labels_name: str, classes: int) -> Samples:
    images = _read(folder / images_name, 3)
    labels = _read(folder / labels_name, 1).long()
    if images.shape[1:] != (28, 28) or not len(images) or len(labels) != len(images):
        raise UserError(
            printable(folder / images_name),
            f"{len(images)} images of {list(images.shape[1:])} and {len(labels)} labels in "
            f"{labels_name}",
            "must be as many, of [28, 28]",
        )
    if labels.max() >= classes:
        raise UserError(
            printable(folder / labels_name), f"label {int(labels.max())} is not 0 to {classes - 1}"
        )
    return Samples(images[:, None], labels)


def _read(path: Path, dimensions: int) -> Tensor:
    """Read unsigned bytes, packed ones too: torchvision would unpack them beside, where it may."""
    found = path if path.is_file() else path.with_name(f"{path.name}.gz")
    check_file(found, _MAX_BYTES)
    try:
        with gzip.open(found) if found != path else found.open("rb") as file:
            content = file.read(_MAX_BYTES)  # more is no such file
        magic, *shape = struct.unpack_from(f">{1 + dimensions}I", content)
        if magic != 0x800 + dimensions:
            raise ValueError(f"not {dimensions} dimensions of unsigned bytes")
        elements = np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions)
        return torch.from_numpy(elements.reshape(shape).copy())
    except (OSError, EOFError, ValueError, struct.error, zlib.error) as error:
        raise UserError(
            printable(found), f"not a file of MNIST's format: {reason(error)}"
        ) from error
