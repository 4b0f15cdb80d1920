"""CIFAR-10 as torchvision has it, from its archive, or from a tree of images."""

import logging
from collections.abc import Sequence
from pathlib import Path

from fednnnn_plugin.data.cifar_files import CifarFiles
from fednnnn_plugin.data.image_tree import read_tree
from fednnnn_plugin.data.images import Parts
from fednnnn_plugin.data.torchvision_files import torchvision_set
from fednnnn_plugin.errors import UserError, printable

_log = logging.getLogger(__name__)

#: The data set's own label order, 0 to 9.
CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip

# Of the 50,000 original training images.
_MOMENTS = (
    (0.49140 * 255, 0.48216 * 255, 0.44653 * 255),
    (0.24703 * 255, 0.24349 * 255, 0.26159 * 255),
)
_COUNTS = 50_000, 10_000  # of images to train and to test
_FILES = CifarFiles(
    "CIFAR10",
    "cifar-10-batches-py",
    (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"),
    "cifar-10-python.tar.gz",
)
_TREES = ("CIFAR-10-images", "cifar10")
_TREE = f"{{{','.join(_TREES)}}}/{{train,test}}/<class>/*.jpg|png"


def _tree(cache_dir: Path) -> Path | None:
    trees = (cache_dir / tree for tree in _TREES)
    return next((t for t in trees if (t / "train").is_dir() or (t / "test").is_dir()), None)


def _missing(cache_dir: Path, _: str) -> list[str]:
    missing = _FILES.missing(cache_dir)
    return [f"{missing[0]} or {_TREE}"] if missing and not _tree(cache_dir) else []


def _read(cache_dir: Path, _: str) -> tuple[Parts, Sequence[str]]:
    if not _FILES.missing(cache_dir):
        return _FILES.read(cache_dir), CLASSES
    tree = _tree(cache_dir)
    assert tree is not None
    parts, classes = read_tree(tree, cache_dir, where=printable(tree))
    shape = list(parts.train.inputs.shape[1:])
    if classes != CLASSES or shape != [3, 32, 32]:
        raise UserError(
            printable(tree),
            f"images of {shape} in {printable(', '.join(classes))}",
            f"must be of [3, 32, 32] in {', '.join(CLASSES)}",
        )
    counts = len(parts.train.labels), len(parts.test.labels)
    if counts != _COUNTS:
        told = "%s: has %d training and %d test images; CIFAR-10 has %d and %d"
        _log.warning(told, printable(tree), *counts, *_COUNTS)
    return parts, CLASSES


torchvision_set("CIFAR10", _missing, _read, called="cifar10", moments=_MOMENTS)
