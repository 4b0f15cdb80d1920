"""MNIST in torchvision's layout: ``MNIST/raw/*-ubyte``, compressed or not."""

from importlib import import_module
from pathlib import Path

from fednnnn_plugin.data.cache import DecodedCache
from fednnnn_plugin.data.download import download as fetch
from fednnnn_plugin.data.idx import read_idx
from fednnnn_plugin.data.images import ImageDataset, Pixels
from fednnnn_plugin.data.sources import data_folder, fingerprint
from fednnnn_plugin.errors import UserError

# Of the 60,000 training images; a test holds them against the files.
MEAN = (0.13066,)
STD = (0.30811,)

_PARTS = ("train", 60_000), ("t10k", 10_000)
_NAMES = tuple(
    f"{part}-{kind}-ubyte" for part, _ in _PARTS for kind in ("images-idx3", "labels-idx1")
)
_IMAGE_SIDE = 28
_NUM_CLASSES = 10


def load_mnist(cache_dir: Path, *, download: bool, seed: int) -> ImageDataset:
    """Read the four files, after downloading those that are missing if ``download``.

    Raises:
        UserError: a file is missing, damaged or cannot be downloaded; names it.
    """
    del seed  # the split into training and test images is the data set's own
    raw = cache_dir / "MNIST" / "raw"
    cache = DecodedCache(cache_dir, "mnist", (1, _IMAGE_SIDE, _IMAGE_SIDE), _NUM_CLASSES)
    with data_folder(cache_dir):
        if download and _missing(raw):
            cache_dir.mkdir(parents=True, exist_ok=True)
            with cache.locked():
                for name in _missing(raw):
                    _download(raw / f"{name}.gz")
        if missing := _missing(raw):
            raise UserError(
                f"{cache_dir}: no MNIST here: looked for {', '.join(missing)} (or .gz) in "
                "MNIST/raw; set download: true, or put torchvision's files there"
            )
        files = [_find(raw, name) for name in _NAMES]
        pixels = cache.get(fingerprint(raw, files), lambda: _decode(files))
    return ImageDataset(pixels, _NUM_CLASSES, pixel_max=255, mean=MEAN, std=STD)


def mnist_is_present(cache_dir: Path) -> bool:
    """Tell whether the four files are there; they are not read."""
    try:
        return not _missing(cache_dir / "MNIST" / "raw")
    except OSError:
        return False


def _find(raw: Path, name: str) -> Path:
    plain = raw / name
    return plain if plain.exists() else raw / f"{name}.gz"


def _missing(raw: Path) -> list[str]:
    return [name for name in _NAMES if not _find(raw, name).exists()]


def _download(target: Path) -> None:
    mnist = import_module("torchvision.datasets").MNIST
    urls = [f"{mirror}{target.name}" for mirror in mnist.mirrors]
    fetch(urls, dict(mnist.resources)[target.name], target)


def _decode(files: list[Path]) -> Pixels:
    parts = []
    for (_, most), images_file, labels_file in zip(_PARTS, files[::2], files[1::2], strict=True):
        images = read_idx(images_file, (_IMAGE_SIDE, _IMAGE_SIDE), most)
        labels = read_idx(labels_file, (), most)
        if len(labels) != len(images):
            raise UserError(
                f"{labels_file}: {len(labels)} labels for the {len(images)} images of "
                f"{images_file.name}"
            )
        if labels.max() >= _NUM_CLASSES:
            raise UserError(f"{labels_file}: has label {int(labels.max())}; they go from 0 to 9")
        parts += [images[:, None], labels.long()]
    return Pixels(*parts)
