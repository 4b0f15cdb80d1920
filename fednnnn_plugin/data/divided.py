"""A data set that may name its samples' owners, made ready: parts, a natural split, normalised."""

import numpy as np

from fednnnn_plugin.data.holdout import drawn_apart
from fednnnn_plugin.data.images import (
    ImageDataset,
    Parts,
    Samples,
    Split,
    are_classes,
    channel_moments,
)
from fednnnn_plugin.data.natural import NATURAL, Owners, divide_by_owner
from fednnnn_plugin.data.spec import DataSpec
from fednnnn_plugin.errors import UserError, printable
from fednnnn_plugin.seeds import derive_seed


def divided_dataset(
    parts: Parts,
    class_names: tuple[str, ...],
    owners: Owners | None,
    spec: DataSpec,
    purpose: str = "test part",
) -> ImageDataset:
    """Divide samples by owner where the recipe says so; else draw a test part where none is.

    The test is ``test_fraction`` of every class, but not all of any, by the generator of this
    purpose. Images, uint8, are normalised by mean and standard deviation of the training pixels.
    The fingerprint is of all samples, and the same for all seeds.
    """
    split, fingerprint = Split(), {"data": {"tensors": parts.digest()}}
    if spec.partition_method == NATURAL and owners is not None:
        parts, split = divide_by_owner(parts, owners, spec)
    elif not len(parts.test.labels):
        rng = np.random.default_rng(derive_seed(spec.seed, purpose))
        parts = _with_test_part(parts.train, spec.test_fraction, rng, class_names)
    moments = channel_moments(parts.train.inputs)
    return ImageDataset(parts, class_names, *moments, split, fingerprint)


def _with_test_part(
    samples: Samples, fraction: float, rng: np.random.Generator, class_names: tuple[str, ...]
) -> Parts:
    total = len(samples.labels)
    num_test = round(fraction * total)
    parts, what = drawn_apart(samples, num_test, rng), "" if num_test else "the test"
    if num_test == total:
        what = "the training"
    elif num_test and are_classes(samples.labels):
        whole, left = (
            labels.bincount(minlength=len(class_names))
            for labels in (samples.labels, parts.train.labels)
        )
        if gone := ((left == 0) & (whole > 0)).nonzero().flatten().tolist():
            what = f"class {printable(class_names[gone[0]])}"
    if what:
        raise UserError(
            "data_args.test_fraction", f"{fraction}: leaves {what} without a sample, of {total}"
        )
    return parts
