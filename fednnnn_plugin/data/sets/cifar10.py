"""CIFAR-10 as torchvision has it, from its archive, or from a tree of images."""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from fednnnn_plugin.data.image_tree import read_tree
from fednnnn_plugin.data.images import ImageDataset, Pixels
from fednnnn_plugin.data.sets import named_dataset
from fednnnn_plugin.data.sources import (
    arriving,
    check_file,
    data_folder,
    download_missing,
    torchvision_datasets,
)
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

_FOLDER = "cifar-10-batches-py"
_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
_ARCHIVE = "cifar-10-python.tar.gz"
_TREES = ("CIFAR-10-images", "cifar10")
_MAX_BYTES = 200_000_000  # of the archive, and of each batch


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
                f"data_cache_dir: {printable(cache_dir)}: no CIFAR-10 here: looked for {_FOLDER}/ "
                f"(with its six batches), {_ARCHIVE} and {{{','.join(_TREES)}}}/{{train,test}}/"
                "<class>/*.jpg|png; set "
                "download: true, or put one of them there"
            )
        if source.name == _FOLDER:
            pixels = _read_batches(source)
        elif source.name == _ARCHIVE:
            pixels = _read_archive(source)
        else:
            pixels = _read_tree(source, cache_dir)
    return ImageDataset(pixels, CLASSES, MEAN, STD), {}


def _source(cache_dir: Path) -> Path | None:
    if all((cache_dir / _FOLDER / name).is_file() for name in _BATCHES):
        return cache_dir / _FOLDER
    if (cache_dir / _ARCHIVE).is_file():
        return cache_dir / _ARCHIVE
    trees = (cache_dir / tree for tree in _TREES)
    return next((t for t in trees if (t / "train").is_dir() or (t / "test").is_dir()), None)


def _read_batches(folder: Path) -> Pixels:
    """Read the batches, which are pickles: only those whose sums are the official ones'."""
    cifar10 = torchvision_datasets().CIFAR10
    meta = (cifar10.meta["filename"], cifar10.meta["md5"])
    for name, md5 in (*cifar10.train_list, *cifar10.test_list, meta):
        check_file(folder / name, _MAX_BYTES, md5)
    parts = []
    for train in (True, False):
        part = cifar10(str(folder.parent), train=train)
        parts.append(torch.from_numpy(part.data.transpose(0, 3, 1, 2)).contiguous())
        parts.append(torch.tensor(part.targets, dtype=torch.int64))
    return Pixels(*parts)


def _read_archive(archive: Path) -> Pixels:
    """Unpack where the archive lies, for later starts too; for this one where that cannot be."""
    check_file(archive, _MAX_BYTES, torchvision_datasets().CIFAR10.tgz_md5)
    extract = torchvision_datasets().utils.extract_archive
    try:
        with arriving(archive.parent) as place:
            if _source(archive.parent) == archive:  # still, as the lock is ours
                extract(str(archive), place)
    except (OSError, NotImplementedError):  # no place, lock or room
        with TemporaryDirectory() as place:
            extract(str(archive), place)
            return _read_batches(Path(place) / _FOLDER)
    return _read_batches(archive.parent / _FOLDER)


def _read_tree(tree: Path, cache_dir: Path) -> Pixels:
    pixels, classes = read_tree(tree, cache_dir, where=printable(tree))
    shape = list(pixels.train_images.shape[1:])
    if classes != CLASSES or shape != [3, 32, 32]:
        raise UserError(
            f"{printable(tree)}: images of {shape} in {printable(', '.join(classes))}; must be of "
            f"[3, 32, 32] in {', '.join(CLASSES)}"
        )
    return pixels
