"""1,797 handwritten digits, 8 x 8, in 17 shades.

The test set of E. Alpaydin and C. Kaynak, *Optical Recognition of Handwritten Digits*, UCI Machine
Learning Repository, 1998, https://doi.org/10.24432/C50P49, CC BY 4.0, in the file that scikit-learn
has as well, but takes a second to import. A line is the 64 pixels of an image, and its digit.
"""

from functools import cache
from pathlib import Path

import numpy as np
import torch

from fednnnn_plugin.data.holdout import drawn_apart
from fednnnn_plugin.data.images import ImageDataset, Samples, channel_moments
from fednnnn_plugin.data.sets import named_dataset
from fednnnn_plugin.data.spec import DataSpec
from fednnnn_plugin.seeds import derive_seed


@named_dataset("digits")
def _load(spec: DataSpec) -> ImageDataset:
    return load_digits(spec.seed)


def load_digits(seed: int) -> ImageDataset:
    """Split the digits by seed into 1,437 training and 360 test images."""
    rng = np.random.default_rng(derive_seed(seed, "digits split"))
    parts = drawn_apart(_digits(), 360, rng)
    return ImageDataset(parts, tuple("0123456789"), *channel_moments(parts.train.inputs))


@cache  # a table of text, which a sweep would read for each run
def _digits() -> Samples:
    file = Path(__file__).with_name("digits.csv.gz")
    table = torch.from_numpy(np.loadtxt(file, np.uint8, delimiter=","))
    return Samples(table[:, :-1].reshape(-1, 1, 8, 8), table[:, -1].long())
