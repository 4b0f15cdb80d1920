"""Parts of a labelled set with the classes in its proportions; and a validation part of one."""

from dataclasses import replace

import numpy as np
import torch

from fednnnn_plugin.data.class_split import apportion
from fednnnn_plugin.data.images import ImageDataset, Pixels
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.seeds import derive_seed


def drawn_apart(pixels: Pixels, num_drawn: int, rng: np.random.Generator) -> Pixels:
    """Draw that many of the training part to stand in the place of the test part.

    Of each class its share, rounded by largest remainder.
    """
    images, labels = pixels[:2]
    quotas = apportion(num_drawn, np.bincount(labels.numpy()))
    drawn = torch.zeros(len(labels), dtype=torch.bool)
    for label, quota in enumerate(quotas):
        drawn[rng.permutation(np.flatnonzero(labels.numpy() == label))[:quota]] = True
    return Pixels(images[~drawn], labels[~drawn], images[drawn], labels[drawn])


def hold_out(dataset: ImageDataset, fraction: float, seed: int) -> ImageDataset:
    """Split the training images into a training and a validation part (paper, appendix, Step 1).

    The validation part stands in the place of the test part, which a run on it never sees.
    """
    total = len(dataset.pixels.train_labels)
    held = round(fraction * total)
    if not 0 < held < total:
        raise UserError(
            f"data_args.validation_fraction: {fraction}: leaves {total - held} of {total} training "
            f"images to train on and {held} to validate on; both need at least one"
        )
    rng = np.random.default_rng(derive_seed(seed, "validation"))
    return replace(dataset, pixels=drawn_apart(dataset.pixels, held, rng))
