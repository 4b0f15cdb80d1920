"""1,797 handwritten digits, 8 x 8, in 17 shades.

The test set of E. Alpaydin and C. Kaynak, *Optical Recognition of Handwritten Digits*, UCI Machine
Learning Repository, 1998, https://doi.org/10.24432/C50P49, CC BY 4.0, in the file that scikit-learn
has as well, but takes a second to import. A line is the 64 pixels of an image, and its digit.
"""

from functools import cache
from pathlib import Path

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
    file = Path(__file__).with_name("digits.csv.gz")
    table = torch.from_numpy(np.loadtxt(file, np.uint8, delimiter=","))
    return table[:, :-1].reshape(-1, 1, 8, 8), table[:, -1].long()
