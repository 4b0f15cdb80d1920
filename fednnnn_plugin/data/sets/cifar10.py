"""CIFAR-10 as torchvision has it, from its archive, or from a tree of images."""

from collections.abc import Sequence
from pathlib import Path

from fednnnn_plugin.data.cifar_files import CifarFiles
from fednnnn_plugin.data.image_tree import read_tree
from fednnnn_plugin.data.images import Parts
from fednnnn_plugin.data.torchvision_files import TorchvisionFiles
from fednnnn_plugin.errors import UserError, printable

#: The data set's own label order, 0 to 9.
CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip

# Of the 50,000 original training images.
_MOMENTS = (
    (0.49140 * 255, 0.48216 * 255, 0.44653 * 255),
    (0.24703 * 255, 0.24349 * 255, 0.26159 * 255),
)
_FILES = CifarFiles(
    "CIFAR10",
    "cifar-10-batches-py",
    (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"),
    "cifar-10-python.tar.gz",
)
_TREES = ("CIFAR-10-images", "cifar10")
_TREE = f"{{{','.join(_TREES)}}}/{{train,test}}/<class>/*.jpg|png"


def _source(cache_dir: Path) -> Path | None:
    if found := _FILES.source(cache_dir):
        return found
    trees = (cache_dir / tree for tree in _TREES)
    return next((t for t in trees if (t / "train").is_dir() or (t / "test").is_dir()), None)


def _missing(cache_dir: Path, _: str) -> list[str]:
    looked_for = [f"{_FILES.folder}/ (with its six batches)", _FILES.archive, _TREE]
    return [] if _source(cache_dir) else looked_for


def _read(cache_dir: Path, _: str) -> tuple[Parts, Sequence[str]]:
    source = _source(cache_dir)
    assert source is not None
    if source.name not in _TREES:
        return _FILES.read(source), CLASSES
    parts, classes = read_tree(source, cache_dir, where=printable(source))
    shape = list(parts.train.inputs.shape[1:])
    if classes != CLASSES or shape != [3, 32, 32]:
        raise UserError(
            printable(source),
            f"images of {shape} in {printable(', '.join(classes))}",
            f"must be of [3, 32, 32] in {', '.join(CLASSES)}",
        )
    return parts, CLASSES


TorchvisionFiles("CIFAR10", _missing, _read, moments=_MOMENTS, or_put="one of them").register(
    "cifar10", is_fedmls=True
)
