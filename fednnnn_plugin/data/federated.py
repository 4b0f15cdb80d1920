"""A data set divided between clients, staged once: clients are lists of positions."""

import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fednnnn_plugin.data.holdout import hold_out
from fednnnn_plugin.data.image_folder import load_image_folder
from fednnnn_plugin.data.images import ImageDataset
from fednnnn_plugin.data.load import load_images
from fednnnn_plugin.data.own_data import load_own_data
from fednnnn_plugin.data.partition import partition
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.user_code import names_code

#: What a recipe calls the arguments of `partition` that its refusals name.
_KEYS = {
    "method": "data_args.partition_method",
    "num_clients": "train_args.client_num_in_total",
    "classes_per_client": "data_args.classes_per_client",
    "power_law_exponent": "data_args.power_law_exponent",
    "alpha": "data_args.partition_alpha",
    "min_samples": "data_args.min_samples",
}
_ARGUMENTS = re.compile(rf"\b({'|'.join(_KEYS)})\b")


@dataclass(frozen=True)
class DataSpec:
    """What to load and how to divide it: the recipe's values; ``allow_code`` is the user's word."""

    dataset: str
    data_cache_dir: Path
    download: bool
    partition_method: str
    partition_sizes: str
    classes_per_client: int
    power_law_exponent: float
    min_samples: int
    num_clients: int
    seed: int
    validation_fraction: float = 0.0
    data_dir: Path | None = None
    image_size: tuple[int, int] | None = None
    test_fraction: float = 0.2
    allow_code: bool = False
    partition_alpha: float = 0.5


@dataclass(frozen=True, eq=False)
class FederatedData:
    """All inputs and labels once, and which of the training inputs each client holds.

    Images are float32 [n, C, H, W], normalised; a user's own inputs [n, …]. Labels are int64 [n].
    A client's indices are positions in the training tensors, int64 [n_k].
    """

    train_images: Tensor
    train_labels: Tensor
    client_indices: tuple[Tensor, ...]
    test_images: Tensor
    test_labels: Tensor
    num_classes: int
    class_names: tuple[str, ...] = ()

    @property
    def num_clients(self) -> int:
        """K."""
        return len(self.client_indices)

    def client_size(self, client: int) -> int:
        """n_k."""
        return len(self.client_indices[client])

    def client_data(self, client: int) -> tuple[Tensor, Tensor]:
        """A client's inputs [n_k, …] and labels [n_k], copied out."""
        indices = self.client_indices[client]
        return self.train_images[indices], self.train_labels[indices]


def load_federated(spec: DataSpec) -> FederatedData:
    """Load a data set, normalise it and divide its training images between clients."""
    dataset = _load(spec)
    if spec.validation_fraction:
        dataset = hold_out(dataset, spec.validation_fraction, spec.seed)
    pixels = dataset.pixels
    try:
        client_indices = partition(
            pixels.train_labels,
            spec.num_clients,
            method=spec.partition_method,
            sizes=spec.partition_sizes,
            classes_per_client=spec.classes_per_client,
            power_law_exponent=spec.power_law_exponent,
            alpha=spec.partition_alpha,
            min_samples=spec.min_samples,
            seed=spec.seed,
        )
    except UserError as error:
        raise UserError(_ARGUMENTS.sub(lambda name: _KEYS[name[0]], str(error))) from error
    return FederatedData(
        dataset.normalised(pixels.train_images),
        pixels.train_labels,
        tuple(torch.from_numpy(indices) for indices in client_indices),
        dataset.normalised(pixels.test_images),
        pixels.test_labels,
        len(dataset.class_names),
        dataset.class_names,
    )


def _load(spec: DataSpec) -> ImageDataset:
    name, cache_dir = spec.dataset, spec.data_cache_dir
    if names_code(name):
        return load_own_data(name, allow_code=spec.allow_code, seed=spec.seed)
    if name != "image_folder":
        return load_images(name, cache_dir, download=spec.download, seed=spec.seed)
    assert spec.data_dir is not None, "a checked recipe names the folder"
    return load_image_folder(
        spec.data_dir, cache_dir, spec.image_size, spec.test_fraction, spec.seed
    )
