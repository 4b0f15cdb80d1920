"""CIFAR-10 from torchvision's layouts, or from an image-folder tree."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from fednnnn_plugin.data import cifar10_archive as official
from fednnnn_plugin.data.cache import DecodedCache
from fednnnn_plugin.data.cifar10_batches import IMAGE_SHAPE, NUM_CLASSES
from fednnnn_plugin.data.cifar10_tree import read_tree, tree_files
from fednnnn_plugin.data.download import download as fetch
from fednnnn_plugin.data.images import ImageDataset, Pixels
from fednnnn_plugin.data.sources import data_folder, fingerprint
from fednnnn_plugin.errors import UserError

# Of the 50,000 original training images.
MEAN = (0.49140, 0.48216, 0.44653)
STD = (0.24703, 0.24349, 0.26159)

ARCHIVE = "cifar-10-python.tar.gz"
TREES = ("CIFAR-10-images", "cifar10")


class _Source(NamedTuple):
    files: list[Path]
    decode: Callable[[], Pixels]


def load_cifar10(cache_dir: Path, *, download: bool, seed: int) -> ImageDataset:
    """Read the first that is there of: Python batches, their archive, an image-folder tree.

    If there is none and ``download``, the archive is downloaded.

    Raises:
        UserError: there is none, or the one there is damaged; names the file.
    """
    del seed  # the split into training and test images is the data set's own
    cache = DecodedCache(cache_dir, "cifar10", IMAGE_SHAPE, NUM_CLASSES)
    with data_folder(cache_dir):
        source = _find(cache_dir)
        if source is None and download:
            cache_dir.mkdir(parents=True, exist_ok=True)
            with cache.locked():
                if _find(cache_dir) is None:
                    _download(cache_dir / ARCHIVE)
            source = _find(cache_dir)
        if source is None:
            raise UserError(
                f"{cache_dir}: no CIFAR-10 here: looked for {official.FOLDER}/ (with "
                f"{', '.join(official.BATCHES)}), {ARCHIVE}, "
                + " and ".join(f"{tree}/{{train,test}}/<class>/*.jpg|png" for tree in TREES)
                + "; set download: true, or put one of them there"
            )
        pixels = cache.get(fingerprint(cache_dir, source.files), source.decode)
    return ImageDataset(pixels, NUM_CLASSES, pixel_max=255, mean=MEAN, std=STD)


def cifar10_is_present(cache_dir: Path) -> bool:
    """Tell whether the data set is there in one of its forms; no image is read."""
    try:
        return _find(cache_dir) is not None
    except (OSError, UserError):  # something is, but not CIFAR-10
        return False


def _find(cache_dir: Path) -> _Source | None:
    folder, archive = cache_dir / official.FOLDER, cache_dir / ARCHIVE
    batches = [folder / name for name in official.BATCHES]
    if all(batch.exists() for batch in batches):
        return _Source(batches, partial(official.read_folder, folder))
    if archive.exists():
        return _Source([archive], partial(official.read_archive, archive))
    for tree in (cache_dir / name for name in TREES):
        if (tree / "train").exists() or (tree / "test").exists():
            files = tree_files(tree)
            return _Source(files, partial(read_tree, tree, files))
    return None


def _download(target: Path) -> None:
    cifar10 = import_module("torchvision.datasets").CIFAR10
    fetch([cifar10.url], cifar10.tgz_md5, target)
