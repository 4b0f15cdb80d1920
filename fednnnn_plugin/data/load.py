"""Data sets by name."""

from collections.abc import Callable
from pathlib import Path

from fednnnn_plugin.data.cifar10 import cifar10_is_present, load_cifar10
from fednnnn_plugin.data.digits import load_digits
from fednnnn_plugin.data.images import ImageDataset
from fednnnn_plugin.data.mnist import load_mnist, mnist_is_present
from fednnnn_plugin.errors import UserError

LOADERS: dict[str, Callable[..., ImageDataset]] = {
    "digits": load_digits,
    "mnist": load_mnist,
    "cifar10": load_cifar10,
}


def load_images(dataset: str, cache_dir: Path, *, download: bool, seed: int) -> ImageDataset:
    """Load a data set of ``LOADERS`` from torchvision's layout below ``cache_dir``.

    What is missing is fetched if ``download``. The seed draws the test part where the data set has
    none of its own.
    """
    if dataset not in LOADERS:
        raise UserError(f"dataset: {dataset!r}: must be one of {', '.join(LOADERS)}")
    return LOADERS[dataset](Path(cache_dir).expanduser(), download=download, seed=seed)


def is_present(dataset: str, cache_dir: Path) -> bool:
    """Tell whether a data set's files are where `load_images` looks for them; no file is read."""
    folder = cache_dir.expanduser()
    try:
        match dataset:
            case "mnist":
                return mnist_is_present(folder)
            case "cifar10":
                return cifar10_is_present(folder)
    except OSError:
        return False
    return dataset in LOADERS  # digits come with scikit-learn
