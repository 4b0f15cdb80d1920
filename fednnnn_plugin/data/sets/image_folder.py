"""A folder of the user's own images, with a folder for each class."""

from pathlib import Path

import numpy as np

from fednnnn_plugin.data.divided import with_test_part
from fednnnn_plugin.data.image_tree import read_tree
from fednnnn_plugin.data.images import ImageDataset, normalised_by_training_part
from fednnnn_plugin.data.sets import named_dataset
from fednnnn_plugin.data.sources import data_folder
from fednnnn_plugin.data.spec import DataSpec
from fednnnn_plugin.errors import UserError, printable
from fednnnn_plugin.fingerprint import Fingerprint, tensors_digest
from fednnnn_plugin.seeds import derive_seed


@named_dataset("image_folder")
def _load(spec: DataSpec) -> tuple[ImageDataset, Fingerprint]:
    assert spec.data_dir is not None, "a checked recipe names the folder"
    dataset, digest = load_image_folder(
        spec.data_dir, spec.data_cache_dir, spec.image_size, spec.test_fraction, spec.seed
    )
    return dataset, {"data": {"tensors": digest}}


def load_image_folder(
    folder: Path,
    cache_dir: Path,
    image_size: tuple[int, int] | None,
    test_fraction: float,
    seed: int,
) -> tuple[ImageDataset, str]:
    """Load custom images, normalised by mean and standard deviation of the training pixels.

    Where the tree has no parts, ``test_fraction`` of every class, drawn by the seed, is the test.
    With them comes a digest of all images, which is the same for all seeds.
    """
    where = f"data_args.data_dir: {printable(folder)}"
    if not folder.is_dir():
        raise UserError(f"{where}: no such folder")
    with data_folder(folder):
        pixels, classes = read_tree(folder, cache_dir, where, image_size)
    digest = tensors_digest(pixels._asdict().items())
    if not len(pixels.test_labels):
        rng = np.random.default_rng(derive_seed(seed, "image folder split"))
        pixels = with_test_part(pixels, test_fraction, rng, classes)
    return normalised_by_training_part(pixels, classes), digest
