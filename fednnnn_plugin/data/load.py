"""Data sets by name."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from fednnnn_plugin.data.cifar10 import cifar10_is_present, load_cifar10
from fednnnn_plugin.data.holdout import drawn_apart
from fednnnn_plugin.data.images import ImageDataset, Pixels, normalised_by_training_part
from fednnnn_plugin.data.mnist import load_mnist, mnist_is_present
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.seeds import derive_seed


def load_digits(cache_dir: Path, *, download: bool, seed: int) -> ImageDataset:
    """Split scikit-learn's 1,797 digits, 8 x 8, by seed into 1,437 training and 360 test images."""
    del cache_dir, download  # bundled with scikit-learn
    try:
        from sklearn import datasets
    except ImportError as error:
        raise UserError(f"dataset: 'digits': they come with scikit-learn: {error}") from error
    table, targets = datasets.load_digits(return_X_y=True)
    images = torch.from_numpy(table.astype(np.uint8)).reshape(-1, 1, 8, 8)
    labels = torch.from_numpy(targets.astype(np.int64))
    rng = np.random.default_rng(derive_seed(seed, "digits split"))
    pixels = drawn_apart(Pixels(images, labels, images, labels), 360, rng)
    return normalised_by_training_part(pixels, tuple("0123456789"), pixel_max=16)


LOADERS: dict[str, Callable[..., ImageDataset]] = {
    "digits": load_digits,
    "mnist": load_mnist,
    "cifar10": load_cifar10,
}


def load_images(dataset: str, cache_dir: Path, *, download: bool, seed: int) -> ImageDataset:
    """Load a data set of ``LOADERS`` from torchvision's layout below ``cache_dir``.

    What is missing is fetched if ``download``. The seed draws the test part of digits.
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
