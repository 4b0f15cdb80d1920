"""scikit-learn's bundled 8x8 digits: 1,797 real images, no network, nothing on disk."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from fednnnn_plugin.data.images import ImageDataset, Pixels, mean_and_std
from fednnnn_plugin.data.stratified import draw_stratified
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.seeds import derive_seed

NUM_TEST = 360
PIXEL_MAX = 16


def load_digits(cache_dir: Path, *, download: bool, seed: int) -> ImageDataset:
    """Split the digits, stratified and by seed, into 1,437 training and 360 test images.

    Normalised by mean and standard deviation of the training pixels of that split.
    """
    del cache_dir, download  # bundled with scikit-learn
    table = np.loadtxt(_bundled_table(), dtype=np.int64, delimiter=",")
    images = torch.from_numpy(table[:, :-1].astype(np.uint8)).reshape(-1, 1, 8, 8)
    labels = torch.from_numpy(table[:, -1].copy())
    rng = np.random.default_rng(derive_seed(seed, "digits split"))
    test = torch.from_numpy(draw_stratified(table[:, -1], NUM_TEST, rng))
    train_images = images[~test]
    mean, std = mean_and_std(train_images, PIXEL_MAX)
    return ImageDataset(
        Pixels(train_images, labels[~test], images[test], labels[test]),
        num_classes=10,
        pixel_max=PIXEL_MAX,
        mean=mean,
        std=std,
    )


def _bundled_table() -> Path:
    """Find what ``sklearn.datasets.load_digits`` reads, without the seconds of importing sklearn.

    A row an image: 64 pixels from 0 to 16 and the label.
    """
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise UserError("dataset: 'digits': scikit-learn, which brings them, is not installed")
    return Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
