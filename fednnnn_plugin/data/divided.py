"""A data set that may name its samples' owners, made ready: parts, a natural split, normalised."""

import numpy as np
import torch

from fednnnn_plugin.data.holdout import drawn_apart
from fednnnn_plugin.data.images import (
    ImageDataset,
    Pixels,
    Split,
    are_classes,
    normalised_by_training_part,
)
from fednnnn_plugin.data.natural import NATURAL, Owners, divide_by_owner
from fednnnn_plugin.data.spec import DataSpec
from fednnnn_plugin.errors import UserError, printable
from fednnnn_plugin.fingerprint import Fingerprint, tensors_digest
from fednnnn_plugin.seeds import derive_seed


def divided_dataset(
    pixels: Pixels,
    class_names: tuple[str, ...],
    owners: Owners | None,
    spec: DataSpec,
    purpose: str = "test part",
) -> tuple[ImageDataset, Fingerprint]:
    """Divide samples by owner where the recipe says so; else draw a test part where none is.

    The test is ``test_fraction`` of every class, but not all of any, by the generator of this
    purpose. Images, uint8, are normalised by mean and standard deviation of the training pixels.
    The fingerprint is of all samples, and the same for all seeds.
    """
    split, digest = Split(), tensors_digest(pixels._asdict().items())
    if spec.partition_method == NATURAL and owners is not None:
        pixels, split = divide_by_owner(pixels, owners, spec)
    elif not len(pixels.test_labels):
        rng = np.random.default_rng(derive_seed(spec.seed, purpose))
        pixels = _with_test_part(pixels, spec.test_fraction, rng, class_names)
    dataset = normalised_by_training_part(pixels, class_names, split)
    return dataset, {"data": {"tensors": digest}}


def _with_test_part(
    pixels: Pixels, fraction: float, rng: np.random.Generator, class_names: tuple[str, ...]
) -> Pixels:
    total = len(pixels.train_labels)
    num_test = round(fraction * total)
    pixels = drawn_apart(pixels, num_test, rng)
    labels, what = pixels.train_labels, "" if num_test else "the test"
    if num_test and are_classes(labels):
        whole = torch.cat((labels, pixels.test_labels)).bincount(minlength=len(class_names))
        left = labels.bincount(minlength=len(class_names))
        if gone := ((left == 0) & (whole > 0)).nonzero().flatten().tolist():
            what = f"class {printable(class_names[gone[0]])}"
    if what:
        raise UserError(
            "data_args.test_fraction", f"{fraction}: leaves {what} without a sample, of {total}"
        )
    return pixels
