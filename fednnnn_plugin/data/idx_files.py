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

_KINDS = ("images-idx3", "labels-idx1")


def idx_names(train: str = "train", test: str = "t10k") -> tuple[str, ...]:
    """Return the names of the four files, by what those of both parts begin with."""
    return tuple(f"{part}-{kind}-ubyte" for part in (train, test) for kind in _KINDS)


def missing_files(raw: Path, names: Sequence[str]) -> list[str]:
    """Return which of the files are not there in either form."""
    return [n for n in names if not (raw / n).is_file() and not (raw / f"{n}.gz").is_file()]


def read_parts(raw: Path, names: Sequence[str], classes: int, max_bytes: int) -> Parts:
    """Read the four files: 28 × 28 images, uint8 [n, 1, 28, 28], and labels, int64 [n].

    ``max_bytes`` bound a file, unpacked.
    """
    return Parts(*(_part(raw, part, classes, max_bytes) for part in (names[:2], names[2:])))


def _part(raw: Path, names: Sequence[str], classes: int, max_bytes: int) -> Samples:
    images_name, labels_name = names
    images = _read(raw / images_name, 3, max_bytes)
    labels = _read(raw / labels_name, 1, max_bytes).long()
    if images.shape[1:] != (28, 28) or not len(images) or len(labels) != len(images):
        raise UserError(
            printable(raw / images_name),
            f"{len(images)} images of {list(images.shape[1:])} and {len(labels)} labels in "
            f"{labels_name}",
            "must be as many, of [28, 28]",
        )
    if labels.max() >= classes:
        raise UserError(
            printable(raw / labels_name), f"label {int(labels.max())} is not 0 to {classes - 1}"
        )
    return Samples(images[:, None], labels)


def _read(path: Path, dimensions: int, max_bytes: int) -> Tensor:
    """Read unsigned bytes, packed ones too: torchvision would unpack them beside, where it may."""
    found = path if path.is_file() else path.with_name(f"{path.name}.gz")
    check_file(found, max_bytes)
    try:
        with gzip.open(found) if found != path else found.open("rb") as file:
            content = file.read(max_bytes)  # more is no such file
        magic, *shape = struct.unpack_from(f">{1 + dimensions}I", content)
        if magic != 0x800 + dimensions:
            raise ValueError(f"not {dimensions} dimensions of unsigned bytes")
        elements = np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions)
        return torch.from_numpy(elements.reshape(shape).copy())
    except (OSError, EOFError, ValueError, struct.error, zlib.error) as error:
        raise UserError(
            printable(found), f"not a file of MNIST's format: {reason(error)}"
        ) from error
