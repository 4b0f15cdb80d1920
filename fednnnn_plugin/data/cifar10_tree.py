"""CIFAR-10 as an image-folder tree: ``{train,test}/<class>/*.jpg`` or ``*.png``."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from fednnnn_plugin.data.images import Pixels
from fednnnn_plugin.data.sources import open_regular, reason
from fednnnn_plugin.errors import UserError

# The data set's own label order, 0 to 9.
CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip

_PARTS = {"train": 50_000, "test": 10_000}
_SUFFIXES = (".jpg", ".jpeg", ".png")
_SIDE = 32
_MAX_FILE_BYTES = 1_000_000
_THREADS = 8


def tree_files(tree: Path) -> list[Path]:
    """List the images of the tree, parts, classes and names in order.

    Raises:
        UserError: a class folder is missing, empty or not a class, or a part has too many images.
        OSError: a folder cannot be read.
    """
    files = []
    for part, most in _PARTS.items():
        found = [name for name in _visible(tree / part) if (tree / part / name).is_dir()]
        if tuple(found) != CLASSES:
            raise UserError(
                f"{tree / part}: expected the folders {', '.join(CLASSES)}; found "
                f"{', '.join(found[:20]) or 'none'}"
            )
        part_files = [file for name in CLASSES for file in _images(tree / part / name)]
        if len(part_files) > most:
            raise UserError(f"{tree / part}: {len(part_files)} images; CIFAR-10 has {most} of them")
        files += part_files
    return files


def read_tree(tree: Path, files: Sequence[Path]) -> Pixels:
    """Decode the files that `tree_files` listed.

    Raises:
        UserError: a file is not a 32 x 32 JPEG or PNG image; names it.
    """
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as threads:
        images = torch.from_numpy(np.stack(list(threads.map(_decode, files))))
    labels = torch.tensor([CLASSES.index(file.parent.name) for file in files])
    is_train = torch.tensor([file.parent.parent == tree / "train" for file in files])
    return Pixels(images[is_train], labels[is_train], images[~is_train], labels[~is_train])


def _visible(folder: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(folder) if not entry.name.startswith("."))


def _images(folder: Path) -> list[Path]:
    images = [folder / name for name in _visible(folder) if name.lower().endswith(_SUFFIXES)]
    if not images:
        raise UserError(f"{folder}: no {', '.join(_SUFFIXES)} files")
    return images


def _decode(path: Path) -> NDArray[np.uint8]:
    """Decode to [3, 32, 32]; the size that the header claims is checked before decoding."""
    try:
        with (
            open_regular(path, _MAX_FILE_BYTES) as file,
            Image.open(file, formats=("JPEG", "PNG")) as image,
        ):
            if image.size != (_SIDE, _SIDE):
                raise ValueError(f"{image.width} x {image.height} pixels")
            return np.ascontiguousarray(np.asarray(image.convert("RGB")).transpose(2, 0, 1))
    except UnidentifiedImageError as error:
        raise UserError(f"{path}: not a 32 x 32 JPEG or PNG image: neither format") from error
    except Exception as error:  # Pillow raises nearly anything on a damaged file
        raise UserError(f"{path}: not a 32 x 32 JPEG or PNG image: {reason(error)}") from error
