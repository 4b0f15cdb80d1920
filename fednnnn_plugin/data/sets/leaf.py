"""A LEAF folder: samples of users, in JSON files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fednnnn_plugin.data.divided import divided_dataset
from fednnnn_plugin.data.images import ImageDataset, Parts
from fednnnn_plugin.data.labels import class_numbers
from fednnnn_plugin.data.leaf_files import read_leaf
from fednnnn_plugin.data.leaf_samples import (
    Array,
    are_file_names,
    are_texts,
    as_classes,
    as_numbers,
    as_pixels,
    as_tokens,
    chosen_field,
    named_images,
)
from fednnnn_plugin.data.natural import Owners
from fednnnn_plugin.data.own_data import checked_part
from fednnnn_plugin.data.sets import named_dataset
from fednnnn_plugin.data.sources import users_folder
from fednnnn_plugin.data.spec import DataSpec
from fednnnn_plugin.errors import UserError


@named_dataset("leaf", arguments=("input_column",))
def _load(spec: DataSpec) -> ImageDataset:
    """Read the files; a sample is numbers, pixels, the name of an image file, or a text."""
    with users_folder(spec.data_dir) as (folder, where):
        train, test = read_leaf(folder, where)
        first = len(train.labels)
        if not first:
            raise UserError(where, "no user has a sample to train on")
        inputs, labels, names = _arrays(
            train.inputs + test.inputs, train.labels + test.labels, folder, where, spec
        )
    samples = checked_part((inputs, labels), where, loss=spec.loss)
    names = names or class_numbers([samples.labels], where)
    parts = Parts(samples.at(slice(first)), samples.at(slice(first, None)))
    users = np.asarray(train.users + test.users)
    owners = Owners(users[:first], users[first:])
    return divided_dataset(parts, names, owners, spec)


def _arrays(
    inputs: list[Any], labels: Sequence[Any], folder: Path, where: str, spec: DataSpec
) -> tuple[Tensor | Array, Array, tuple[str, ...]]:
    """Return the inputs, the labels, and the names of classes that are texts."""
    inputs = chosen_field(inputs, spec.arguments.get("input_column"), where)
    if are_file_names(inputs):
        images = named_images(inputs, folder, spec.data_cache_dir, spec.image_size, where)
        return images, *as_classes(labels, where)
    if are_texts(inputs):
        return as_tokens(inputs, labels, where)
    numbers = as_numbers(inputs, f"{where}: samples")
    if spec.image_size:
        numbers = as_pixels(numbers, spec.image_size)
    return numbers, *as_classes(labels, where)
