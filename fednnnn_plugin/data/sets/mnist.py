"""MNIST in torchvision's layout: ``MNIST/raw/*-ubyte``, compressed or not."""

from pathlib import Path

from fednnnn_plugin.data.idx_files import idx_names, missing_files, read_pixels
from fednnnn_plugin.data.images import ImageDataset
from fednnnn_plugin.data.sets import named_dataset
from fednnnn_plugin.data.sources import data_folder, download_missing
from fednnnn_plugin.data.spec import DataSpec
from fednnnn_plugin.errors import UserError, printable
from fednnnn_plugin.fingerprint import Fingerprint

# Of the 60,000 training images; a test holds them against the files.
MEAN = (0.13066 * 255,)
STD = (0.30811 * 255,)

_NAMES = idx_names()
_MAX_BYTES = 48_000_000  # the largest file, unpacked, has 47 million


def _has_files(cache_dir: Path) -> bool:
    return not missing_files(cache_dir / "MNIST" / "raw", _NAMES)


@named_dataset("mnist", has_files=_has_files, is_fedmls=True)
def _load(spec: DataSpec) -> tuple[ImageDataset, Fingerprint]:
    """Read the four files, after downloading them where some are missing and that is allowed."""
    cache_dir = spec.data_cache_dir
    raw = cache_dir / "MNIST" / "raw"
    with data_folder(cache_dir):
        if spec.download:
            download_missing("MNIST", cache_dir, _has_files)
        if missing := missing_files(raw, _NAMES):
            raise UserError(
                f"data_cache_dir: {printable(cache_dir)}: no MNIST here: looked for "
                f"{', '.join(missing)} (or .gz) in MNIST/raw; set download: true, or put "
                "torchvision's files there"
            )
        pixels = read_pixels(raw, _NAMES, 10, _MAX_BYTES)
    return ImageDataset(pixels, tuple("0123456789"), MEAN, STD), {}
