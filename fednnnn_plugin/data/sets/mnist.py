"""MNIST in torchvision's layout: ``MNIST/raw/*-ubyte``, compressed or not."""

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fednnnn_plugin.data.images import ImageDataset, Pixels
from fednnnn_plugin.data.sets import named_dataset
from fednnnn_plugin.data.sources import check_file, data_folder, download_missing
from fednnnn_plugin.data.spec import DataSpec
from fednnnn_plugin.errors import UserError, printable, reason
from fednnnn_plugin.fingerprint import Fingerprint

# Of the 60,000 training images; a test holds them against the files.
MEAN = (0.13066 * 255,)
STD = (0.30811 * 255,)

_NAMES = tuple(
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)
_MAX_BYTES = 48_000_000  # the largest file, unpacked, has 47 million


def _has_files(cache_dir: Path) -> bool:
    return not _missing(cache_dir / "MNIST" / "raw")


@named_dataset("mnist", has_files=_has_files, is_fedmls=True)
def _load(spec: DataSpec) -> tuple[ImageDataset, Fingerprint]:
    """Read the four files, after downloading them where some are missing and that is allowed."""
    cache_dir = spec.data_cache_dir
    raw = cache_dir / "MNIST" / "raw"
    with data_folder(cache_dir):
        if spec.download:
            download_missing("MNIST", cache_dir, _has_files)
        if missing := _missing(raw):
            raise UserError(
                f"data_cache_dir: {printable(cache_dir)}: no MNIST here: looked for "
                f"{', '.join(missing)} (or .gz) in MNIST/raw; set download: true, or put "
                "torchvision's files there"
            )
        pixels = Pixels(*_part(raw, *_NAMES[:2]), *_part(raw, *_NAMES[2:]))
    return ImageDataset(pixels, tuple("0123456789"), MEAN, STD), {}


def _missing(raw: Path) -> list[str]:
    return [n for n in _NAMES if not (raw / n).is_file() and not (raw / f"{n}.gz").is_file()]


def _part(raw: Path, images_name: str, labels_name: str) -> tuple[Tensor, Tensor]:
    images, labels = _read(raw / images_name, 3), _read(raw / labels_name, 1).long()
    if images.shape[1:] != (28, 28) or not len(images) or len(labels) != len(images):
        raise UserError(
            f"{printable(raw / images_name)}: {len(images)} images of {list(images.shape[1:])} and "
            f"{len(labels)} labels in {labels_name}; must be as many, of [28, 28]"
        )
    if labels.max() > 9:
        raise UserError(f"{printable(raw / labels_name)}: label {int(labels.max())} is not 0 to 9")
    return images[:, None], labels


def _read(path: Path, dimensions: int) -> Tensor:
    """Read unsigned bytes, packed ones too: torchvision would unpack them beside, where it may."""
    found = path if path.is_file() else path.with_name(f"{path.name}.gz")
    check_file(found, _MAX_BYTES)
    try:
        with gzip.open(found) if found != path else found.open("rb") as file:
            content = file.read(_MAX_BYTES)  # more is no file of MNIST's
        magic, *shape = struct.unpack_from(f">{1 + dimensions}I", content)
        if magic != 0x800 + dimensions:
            raise ValueError(f"not {dimensions} dimensions of unsigned bytes")
        elements = np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions)
        return torch.from_numpy(elements.reshape(shape).copy())
    except (OSError, EOFError, ValueError, struct.error, zlib.error) as error:
        raise UserError(f"{printable(found)}: not a file of MNIST's: {reason(error)}") from error
