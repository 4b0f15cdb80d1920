"""Trees of images, a folder for each class: a user's own, and CIFAR-10 as one."""

import logging
import math
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fednnnn_plugin.data.cache import cached
from fednnnn_plugin.data.image_files import decode, read_headers
from fednnnn_plugin.data.images import ImageDataset, Pixels, normalised_by_training_part
from fednnnn_plugin.data.sources import data_folder, fingerprint, torchvision_datasets
from fednnnn_plugin.data.stratified import draw_stratified
from fednnnn_plugin.errors import UserError, printable
from fednnnn_plugin.seeds import derive_seed

SUFFIXES = (".jpg", ".jpeg", ".png")
MAX_DECODED_BYTES = 4 << 30  # staged as float32 they are four times that

_log = logging.getLogger(__name__)


def load_image_folder(
    folder: Path,
    cache_dir: Path,
    *,
    image_size: tuple[int, int] | None,
    test_fraction: float,
    seed: int,
) -> ImageDataset:
    """Load a user's own images, normalised by mean and standard deviation of the training pixels.

    Args:
        folder: see `read_tree`.
        cache_dir: where the decoded images are kept, for the next run.
        image_size: height and width in pixels to resize to; without it all images must have one.
        test_fraction: share of every class's images that are drawn for the test, in (0, 1), where
            the tree has no parts.
        seed: draws them.

    Raises:
        UserError: there are no images, classes or sizes as expected, or an image is damaged.
    """
    where = f"data_args.data_dir: {printable(folder)}"
    if not folder.is_dir():
        raise UserError(f"{where}: no such folder")
    with data_folder(folder):
        pixels, classes = read_tree(folder, cache_dir, where, image_size)
    if not len(pixels.test_labels):
        pixels = _split(pixels, classes, test_fraction, seed, where)
    return normalised_by_training_part(pixels, classes)


def read_tree(
    folder: Path, cache_dir: Path, where: str, image_size: tuple[int, int] | None = None
) -> tuple[Pixels, tuple[str, ...]]:
    """Read ``<folder>/{train,test}/<class>/*``, or ``<folder>/<class>/*``: JPEG and PNG.

    It has the first layout where it has a folder ``train`` that holds folders; in the second all
    are training images. Files in other places or of other kinds are left out. The images have one
    channel if all are grey, else three.

    Args:
        folder: the tree.
        cache_dir: where the decoded images are kept.
        where: names the folder in messages.
        image_size: height and width in pixels to resize to.

    Returns:
        The images, and the sorted names of the class folders: the labels 0, 1, ...

    Raises:
        UserError: it is no such tree, or an image is damaged or of another size than the others.
        OSError: something in it cannot be reached.
    """
    has_parts = (folder / "train").is_dir() and _classes(folder / "train")
    parts = [folder / "train", folder / "test"] if has_parts else [folder]
    classes = _classes(parts[0])
    if len(classes) < 2:
        raise UserError(
            f"{where}: {len(classes)} folders in {parts[0].name}; expected at least 2 classes as "
            "<class>/*, or train/<class>/* and test/<class>/*"
        )
    if differing := set(classes).symmetric_difference(_classes(parts[-1])):
        names = printable(", ".join(sorted(differing)))
        raise UserError(f"{where}: train and test must have the same classes; one lacks {names}")
    listed = [_images(part, classes) for part in parts]
    files = [Path(path) for images in listed for path, _ in images]
    stamp = fingerprint(f"{folder.resolve()}\0{image_size}", files)
    images = cached(cache_dir, stamp, len(files), partial(_decoded, files, where, image_size))
    labels = torch.tensor([label for images in listed for _, label in images], dtype=torch.int64)
    train = len(listed[0])
    pixels = Pixels(images[:train], labels[:train], images[train:], labels[train:])
    return pixels, tuple(classes)


def _classes(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))


def _images(folder: Path, classes: Sequence[str]) -> list[tuple[str, int]]:
    """Paths and labels of the images below a folder, by class and by name."""
    root, left_out = str(folder), []

    def is_ours(path: str) -> bool:
        place, name = os.path.split(path)
        ours = name.lower().endswith(SUFFIXES) and os.path.split(place)[0] == root
        if not ours and not name.startswith("."):
            left_out.append(path)
        return ours and not name.startswith(".")

    images: list[tuple[str, int]] = torchvision_datasets().ImageFolder.make_dataset(
        root, {name: label for label, name in enumerate(classes)}, None, is_ours, allow_empty=True
    )
    for empty in set(range(len(classes))).difference(label for _, label in images):
        where = printable(folder / classes[empty])
        raise UserError(f"{where}: no {', '.join(SUFFIXES)} files")
    if left_out:
        _log.warning("%s: %d entries are not %s files: left out", folder, len(left_out), SUFFIXES)
    return images


def _decoded(files: Sequence[Path], where: str, image_size: tuple[int, int] | None) -> Tensor:
    headers = read_headers(files)
    size = image_size or headers[0][:2]
    for file, header in zip(files, headers, strict=True):
        if image_size is None and header[:2] != size:
            raise UserError(
                f"{printable(file)}: {header.height} x {header.width} pixels (height x width), "
                f"where {printable(files[0])} has {size[0]} x {size[1]}: give "
                "data_args.image_size to resize all images"
            )
    channels = 1 if all(header.grey for header in headers) else 3
    decoded_bytes = len(files) * channels * math.prod(size)
    if decoded_bytes > MAX_DECODED_BYTES:
        raise UserError(
            f"{where}: {len(files)} images of {size[0]} x {size[1]} pixels are "
            f"{decoded_bytes / 2**30:.1f} GiB when decoded, more than the "
            f"{MAX_DECODED_BYTES >> 30} that they may be: give a smaller data_args.image_size"
        )
    return decode(files, channels, size)


def _split(
    pixels: Pixels, classes: Sequence[str], test_fraction: float, seed: int, where: str
) -> Pixels:
    images, labels = pixels[:2]
    num_test = round(test_fraction * len(labels))
    rng = np.random.default_rng(derive_seed(seed, "image folder split"))
    test = torch.from_numpy(draw_stratified(labels.numpy(), num_test, rng))
    left = torch.bincount(labels[~test], minlength=len(classes))
    if not num_test or not left.all():
        what = f"class {printable(classes[int(left.argmin())])}" if num_test else "the test"
        raise UserError(
            f"data_args.test_fraction: {test_fraction}: leaves {what} without an image, "
            f"of {len(labels)}; {where}"
        )
    return Pixels(images[~test], labels[~test], images[test], labels[test])
