"""scikit-learn's 1,797 digits, 8 x 8, which come with it."""

from functools import cache

import numpy as np
import torch
from torch import Tensor

from fednnnn_plugin.data.holdout import drawn_apart
from fednnnn_plugin.data.images import ImageDataset, Pixels, normalised_by_training_part
from fednnnn_plugin.data.sets import named_dataset
from fednnnn_plugin.data.spec import DataSpec
from fednnnn_plugin.fingerprint import Fingerprint
from fednnnn_plugin.seeds import derive_seed


@named_dataset("digits")
def _load(spec: DataSpec) -> tuple[ImageDataset, Fingerprint]:
    return load_digits(spec.seed), {}


def load_digits(seed: int) -> ImageDataset:
    """Split the digits by seed into 1,437 training and 360 test images."""
    images, labels = _digits()
    rng = np.random.default_rng(derive_seed(seed, "digits split"))
    pixels = drawn_apart(Pixels(images, labels, images, labels), 360, rng)
    return normalised_by_training_part(pixels, tuple("0123456789"))


@cache  # a table of text, which a sweep would read for each run
def _digits() -> tuple[Tensor, Tensor]:
    from sklearn import datasets  # takes a second

    table, targets = datasets.load_digits(return_X_y=True)
    images = torch.from_numpy(table.astype(np.uint8)).reshape(-1, 1, 8, 8)
    return images, torch.from_numpy(targets.astype(np.int64))
