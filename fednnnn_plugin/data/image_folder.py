"""Trees of images, a folder for each class: custom ones, and CIFAR-10 as one."""

from pathlib import Path

import numpy as np
import torch

from fednnnn_plugin.data.cache import cached, files_digest
from fednnnn_plugin.data.holdout import drawn_apart
from fednnnn_plugin.data.image_files import VERSION, decode
from fednnnn_plugin.data.image_tree import scan_tree
from fednnnn_plugin.data.images import ImageDataset, Pixels, normalised_by_training_part
from fednnnn_plugin.data.sources import data_folder
from fednnnn_plugin.errors import UserError, printable
from fednnnn_plugin.fingerprint import tensors_digest
from fednnnn_plugin.seeds import derive_seed


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
    """Read the JPEG and PNG images of a tree; see `scan_tree`."""
    classes, listed = scan_tree(folder, where)
    files = [Path(path) for images in listed for path, _ in images]
    stamp = files_digest(f"{VERSION}\0{folder.resolve()}\0{image_size}", files)
    images = cached(cache_dir, stamp, len(files), lambda: decode(files, image_size))
    labels = torch.tensor([label for images in listed for _, label in images], dtype=torch.int64)
    first = len(listed[0])
    return Pixels(images[:first], labels[:first], images[first:], labels[first:]), classes
