"""MNIST in torchvision's layout: ``MNIST/raw/*-ubyte``, compressed or not."""

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path
from tempfile import NamedTemporaryFile

from torch import Tensor

from fednnnn_plugin.data.images import ImageDataset, Pixels
from fednnnn_plugin.data.sources import check_file, data_folder, downloading, torchvision_datasets
from fednnnn_plugin.errors import UserError, printable, reason

# Of the 60,000 training images; a test holds them against the files.
MEAN = (0.13066,)
STD = (0.30811,)

_NAMES = tuple(
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)
_MAX_BYTES = 48_000_000  # the largest file, unpacked, has 47 million
_WRONG = (AssertionError, LookupError, RuntimeError, TypeError, ValueError)  # of torchvision's


def load_mnist(cache_dir: Path, *, download: bool, seed: int) -> ImageDataset:
    """Read the four files, after downloading them where some are missing and ``download``."""
    del seed  # the split into training and test images is the data set's own
    raw = cache_dir / "MNIST" / "raw"
    with data_folder(cache_dir):
        if download and _missing(raw):
            with downloading(cache_dir) as place:
                if _missing(raw):  # still, once the lock is ours
                    torchvision_datasets().MNIST(place, download=True)
        if missing := _missing(raw):
            raise UserError(
                f"{cache_dir}: no MNIST here: looked for {', '.join(missing)} (or .gz) in "
                "MNIST/raw; set download: true, or put torchvision's files there"
            )
        pixels = Pixels(*_part(raw, *_NAMES[:2]), *_part(raw, *_NAMES[2:]))
    return ImageDataset(pixels, tuple("0123456789"), pixel_max=255, mean=MEAN, std=STD)


def mnist_is_present(cache_dir: Path) -> bool:
    """Tell whether the four files are there; they are not read."""
    return not _missing(cache_dir / "MNIST" / "raw")


def _missing(raw: Path) -> list[str]:
    return [n for n in _NAMES if not (raw / n).is_file() and not (raw / f"{n}.gz").is_file()]


def _part(raw: Path, images_name: str, labels_name: str) -> tuple[Tensor, Tensor]:
    vision = torchvision_datasets().mnist
    images = _read(raw / images_name, vision.read_image_file)
    labels = _read(raw / labels_name, vision.read_label_file)
    if images.shape[1:] != (28, 28) or not len(images) or len(labels) != len(images):
        raise UserError(
            f"{printable(raw / images_name)}: {len(images)} images of {list(images.shape[1:])} and "
            f"{len(labels)} labels in {labels_name}; must be as many, of [28, 28]"
        )
    if labels.max() > 9:
        raise UserError(f"{printable(raw / labels_name)}: label {int(labels.max())} is not 0 to 9")
    return images[:, None], labels


def _read(path: Path, read: Callable[[str], Tensor]) -> Tensor:
    """Read what torchvision has unpacked; or unpack it elsewhere, as the folder may not be ours."""
    found = path if path.is_file() else path.with_name(f"{path.name}.gz")
    check_file(found, _MAX_BYTES)
    try:
        if found == path:
            return read(str(path))
        with gzip.open(found) as file, NamedTemporaryFile() as unpacked:
            unpacked.write(file.read(_MAX_BYTES))  # more is no file of MNIST's
            unpacked.flush()
            return read(unpacked.name)
    except (*_WRONG, OSError, EOFError, zlib.error) as error:
        raise UserError(f"{printable(found)}: not a file of MNIST's: {reason(error)}") from error
