"""scikit-learn's bundled 8x8 digits: 1,797 real images, no network, nothing on disk."""

from pathlib import Path

import numpy as np
import torch

from fednnnn_plugin.data.holdout import drawn_apart
from fednnnn_plugin.data.images import ImageDataset, Pixels, normalised_by_training_part
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.seeds import derive_seed

NUM_TEST = 360
PIXEL_MAX = 16


def load_digits(cache_dir: Path, *, download: bool, seed: int) -> ImageDataset:
    """Split the digits, stratified and by seed, into 1,437 training and 360 test images.

    Normalised by mean and standard deviation of the training pixels of that split.
    """
    del cache_dir, download  # bundled with scikit-learn
    try:
        from sklearn import datasets
    except ImportError as error:
        raise UserError(f"dataset: 'digits': they come with scikit-learn: {error}") from error
    table, targets = datasets.load_digits(return_X_y=True)
    images = torch.from_numpy(table.astype(np.uint8)).reshape(-1, 1, 8, 8)
    labels = torch.from_numpy(targets.astype(np.int64))
    rng = np.random.default_rng(derive_seed(seed, "digits split"))
    pixels = drawn_apart(Pixels(images, labels, images, labels), NUM_TEST, rng)
    return normalised_by_training_part(pixels, tuple("0123456789"), PIXEL_MAX)
