"""A validation part, held out of the training images: hyperparameters are chosen on it."""

from dataclasses import replace

import numpy as np
import torch

from fednnnn_plugin.data.images import ImageDataset, Pixels
from fednnnn_plugin.data.stratified import draw_stratified
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.seeds import derive_seed


def hold_out(dataset: ImageDataset, fraction: float, seed: int) -> ImageDataset:
    """Split the training images into a training and a validation part (paper, appendix, Step 1).

    The validation part stands in the place of the test part, which is left out altogether: a run
    on the result never sees a test image. Classes keep their proportions.

    Args:
        dataset: as loaded.
        fraction: share of the training images to hold out, in (0, 1).
        seed: draws them; the same for the same seed, whatever else a run is set to.

    Raises:
        UserError: one of the parts would be empty.
    """
    pixels = dataset.pixels
    total = len(pixels.train_labels)
    held = round(fraction * total)
    if not 0 < held < total:
        raise UserError(
            f"data_args.validation_fraction: {fraction}: leaves {total - held} of {total} training "
            f"images to train on and {held} to validate on; both need at least one"
        )
    rng = np.random.default_rng(derive_seed(seed, "validation"))
    drawn = torch.from_numpy(draw_stratified(pixels.train_labels.numpy(), held, rng))
    return replace(
        dataset,
        pixels=Pixels(
            pixels.train_images[~drawn],
            pixels.train_labels[~drawn],
            pixels.train_images[drawn],
            pixels.train_labels[drawn],
        ),
    )
