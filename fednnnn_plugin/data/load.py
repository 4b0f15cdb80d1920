"""The data sets that have a name."""

from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fednnnn_plugin.data.cifar10 import cifar10_is_present, load_cifar10
from fednnnn_plugin.data.holdout import drawn_apart
from fednnnn_plugin.data.images import ImageDataset, Pixels, normalised_by_training_part
from fednnnn_plugin.data.mnist import load_mnist, mnist_is_present
from fednnnn_plugin.seeds import derive_seed


@cache  # a table of text, which a sweep would read for each run
def _digits() -> tuple[Tensor, Tensor]:
    from sklearn import datasets  # takes a second

    table, targets = datasets.load_digits(return_X_y=True)
    images = torch.from_numpy(table.astype(np.uint8)).reshape(-1, 1, 8, 8)
    return images, torch.from_numpy(targets.astype(np.int64))


def load_digits(seed: int) -> ImageDataset:
    """Split scikit-learn's 1,797 digits, 8 x 8, by seed into 1,437 training and 360 test images."""
    images, labels = _digits()
    rng = np.random.default_rng(derive_seed(seed, "digits split"))
    pixels = drawn_apart(Pixels(images, labels, images, labels), 360, rng)
    return normalised_by_training_part(pixels, tuple("0123456789"))


def load_images(dataset: str, cache_dir: Path, *, download: bool, seed: int) -> ImageDataset:
    """Load digits, or MNIST or CIFAR-10 from ``cache_dir``, where ``download`` may put them."""
    if dataset == "digits":
        return load_digits(seed)
    load = {"mnist": load_mnist, "cifar10": load_cifar10}[dataset]
    return load(cache_dir, download=download)


def is_present(dataset: str, cache_dir: Path) -> bool:
    """Tell whether a data set's files are where `load_images` looks for them; no file is read."""
    look = {"mnist": mnist_is_present, "cifar10": cifar10_is_present}.get(dataset)
    try:
        return dataset == "digits" if look is None else look(cache_dir)
    except OSError:
        return False
