"""Trees of images, a folder for each class: custom ones, and CIFAR-10 as one."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from fednnnn_plugin.data.cache import cached, files_digest
from fednnnn_plugin.data.holdout import drawn_apart
from fednnnn_plugin.data.image_files import VERSION, decode
from fednnnn_plugin.data.images import ImageDataset, Pixels, normalised_by_training_part
from fednnnn_plugin.data.sources import data_folder
from fednnnn_plugin.errors import UserError, printable
from fednnnn_plugin.fingerprint import tensors_digest
from fednnnn_plugin.seeds import derive_seed

SUFFIXES = (".jpg", ".jpeg", ".png")

_log = logging.getLogger(__name__)


def load_image_folder(
    folder: Path,
    cache_dir: Path,
    image_size: tuple[int, int] | None,
    test_fraction: float,
    seed: int,
) -> tuple[ImageDataset, str]:
    """Load custom images, normalised by mean and standard deviation of the training pixels.

    Where the tree has no parts, ``test_fraction`` of every class, drawn by the seed, is the test.
    With them comes a digest of all images, which is the same for all seeds.
    """
    where = f"data_args.data_dir: {printable(folder)}"
    if not folder.is_dir():
        raise UserError(f"{where}: no such folder")
    with data_folder(folder):
        pixels, classes = read_tree(folder, cache_dir, where, image_size)
    digest = tensors_digest(pixels._asdict().items())
    if not len(pixels.test_labels):
        total = len(pixels.train_labels)
        num_test = round(test_fraction * total)
        rng = np.random.default_rng(derive_seed(seed, "image folder split"))
        pixels = drawn_apart(pixels, num_test, rng)
        left = torch.bincount(pixels.train_labels, minlength=len(classes))
        if not num_test or not left.all():
            what = f"class {printable(classes[int(left.argmin())])}" if num_test else "the test"
            raise UserError(
                f"data_args.test_fraction: {test_fraction}: leaves {what} without an image, of "
                f"{total} in {printable(folder)}"
            )
    return normalised_by_training_part(pixels, classes), digest


def read_tree(
    folder: Path, cache_dir: Path, where: str, image_size: tuple[int, int] | None = None
) -> tuple[Pixels, tuple[str, ...]]:
    """Read ``<folder>/{train,test}/<class>/*``, or ``<folder>/<class>/*``: JPEG and PNG.

    It has the first layout where it has a folder ``train``, and a folder ``test`` beside or any
    folder in it; in the second all are training images. The sorted names of the class folders are
    the labels 0, 1, ...
    """
    train, test = folder / "train", folder / "test"
    has_parts = train.is_dir() and (test.is_dir() or _classes(train))
    parts = [train, test] if has_parts else [folder]
    classes = _classes(parts[0])
    expected = "expected at least 2 classes as <class>/*, or train/<class>/* and test/<class>/*"
    if len(classes) < 2:
        raise UserError(f"{where}: {len(classes)} folders in {printable(parts[0])}; {expected}")
    if not parts[-1].is_dir():
        raise UserError(f"{where}: has a folder train, but no test beside it; {expected}")
    if differing := set(classes).symmetric_difference(_classes(parts[-1])):
        names = printable(", ".join(sorted(differing)))
        raise UserError(f"{where}: train and test must have the same classes; one lacks {names}")
    listed = [_images(part, classes) for part in parts]
    files = [Path(path) for images in listed for path, _ in images]
    stamp = files_digest(f"{VERSION}\0{folder.resolve()}\0{image_size}", files)
    images = cached(cache_dir, stamp, len(files), lambda: decode(files, image_size))
    labels = torch.tensor([label for images in listed for _, label in images], dtype=torch.int64)
    first = len(listed[0])
    pixels = Pixels(images[:first], labels[:first], images[first:], labels[first:])
    return pixels, tuple(classes)


def _classes(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))


def _images(folder: Path, classes: Sequence[str]) -> list[tuple[str, int]]:
    """Paths and labels of the images in a folder's class folders, by class and by name."""
    images, left_out = [], 0
    for label, name in enumerate(classes):
        with os.scandir(folder / name) as entries:
            seen = [entry for entry in entries if not entry.name.startswith(".")]
        ours = [e.path for e in seen if e.name.lower().endswith(SUFFIXES) and not e.is_dir()]
        if not ours:
            raise UserError(f"{printable(folder / name)}: no {', '.join(SUFFIXES)} files")
        images += [(path, label) for path in sorted(ours)]
        left_out += len(seen) - len(ours)
    if left_out:
        what = f"are not {', '.join(SUFFIXES)} files, or lie deeper"
        _log.warning("%s: %d entries %s: left out", printable(folder), left_out, what)
    return images
