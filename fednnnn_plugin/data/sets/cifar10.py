"""CIFAR-10 as torchvision has it, from its archive, or from a tree of images."""

from pathlib import Path

from fednnnn_plugin.data.cifar_files import CifarFiles
from fednnnn_plugin.data.image_tree import read_tree
from fednnnn_plugin.data.images import ImageDataset, Pixels
from fednnnn_plugin.data.sets import named_dataset
from fednnnn_plugin.data.sources import data_folder, download_missing
from fednnnn_plugin.data.spec import DataSpec
from fednnnn_plugin.errors import UserError, printable
from fednnnn_plugin.fingerprint import Fingerprint

#: The data set's own label order, 0 to 9.
CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip

# Of the 50,000 original training images.
MEAN = (0.49140 * 255, 0.48216 * 255, 0.44653 * 255)
STD = (0.24703 * 255, 0.24349 * 255, 0.26159 * 255)

_FILES = CifarFiles(
    "CIFAR10",
    "cifar-10-batches-py",
    (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"),
    "cifar-10-python.tar.gz",
)
_TREES = ("CIFAR-10-images", "cifar10")


def _has_files(cache_dir: Path) -> bool:
    """Tell whether the data set is there in one of its forms."""
    return _source(cache_dir) is not None


@named_dataset("cifar10", has_files=_has_files, is_fedmls=True)
def _load(spec: DataSpec) -> tuple[ImageDataset, Fingerprint]:
    """Read batches, their archive or a tree of images; a download fetches the first of them."""
    cache_dir = spec.data_cache_dir
    with data_folder(cache_dir):
        if spec.download:
            download_missing("CIFAR10", cache_dir, _source)
        source = _source(cache_dir)
        if source is None:
            raise UserError(
                f"data_cache_dir: {printable(cache_dir)}: no CIFAR-10 here: looked for "
                f"{_FILES.folder}/ (with its six batches), {_FILES.archive} and "
                f"{{{','.join(_TREES)}}}/{{train,test}}/<class>/*.jpg|png; set download: true, or "
                "put one of them there"
            )
        in_tree = source.name in _TREES
        pixels = _read_tree(source, cache_dir) if in_tree else _FILES.read(source)
    return ImageDataset(pixels, CLASSES, MEAN, STD), {}


def _source(cache_dir: Path) -> Path | None:
    if found := _FILES.source(cache_dir):
        return found
    trees = (cache_dir / tree for tree in _TREES)
    return next((t for t in trees if (t / "train").is_dir() or (t / "test").is_dir()), None)


def _read_tree(tree: Path, cache_dir: Path) -> Pixels:
    pixels, classes = read_tree(tree, cache_dir, where=printable(tree))
    shape = list(pixels.train_images.shape[1:])
    if classes != CLASSES or shape != [3, 32, 32]:
        raise UserError(
            f"{printable(tree)}: images of {shape} in {printable(', '.join(classes))}; must be of "
            f"[3, 32, 32] in {', '.join(CLASSES)}"
        )
    return pixels
