"""A data set divided between clients, staged once: clients are lists of positions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fednnnn_plugin.data.class_counts import client_counts
from fednnnn_plugin.data.holdout import hold_out, hold_out_of_each
from fednnnn_plugin.data.images import ImageDataset, Normalisation, are_classes
from fednnnn_plugin.data.natural import NATURAL
from fednnnn_plugin.data.own_data import UserData, bring_data, load_own_data
from fednnnn_plugin.data.own_forms import check_clients
from fednnnn_plugin.data.partition import partition
from fednnnn_plugin.data.sets import find_dataset
from fednnnn_plugin.data.spec import DataSpec
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.fingerprint import Fingerprint
from fednnnn_plugin.user_code import is_own

if TYPE_CHECKING:
    import pandas as pd

#: What a recipe calls the arguments of `partition` that its refusals name.
_KEYS = {
    "method": "data_args.partition_method",
    "sizes": "data_args.partition_sizes",
    "num_clients": "train_args.client_num_in_total",
    "classes_per_client": "data_args.classes_per_client",
    "power_law_exponent": "data_args.power_law_exponent",
    "alpha": "data_args.partition_alpha",
    "min_samples": "data_args.min_samples",
}


@dataclass(frozen=True, eq=False)
class FederatedData:
    """All inputs and labels once, and which of the training inputs each client holds.

    Images with a ``normalisation`` are uint8 [n, C, H, W], as they are kept, and ``normalised`` a
    batch at a time; without one inputs [n, …] are used as they are. Labels are int64 [n], a user's
    [n, …], or float32 numbers, of which ``num_classes`` are those of a sample. A client's indices
    are positions in the training tensors, int64 [n_k], and those of ``client_test_indices`` in the
    test tensors; the latter is empty where no client has test samples of its own. The fingerprint
    is of what a user brought.

    With ``client_holdouts`` clients are tested on these of their training samples instead, on which
    none trains.
    """

    train_images: Tensor
    train_labels: Tensor
    client_indices: tuple[Tensor, ...]
    test_images: Tensor
    test_labels: Tensor
    num_classes: int
    class_names: tuple[str, ...] = ()
    fingerprint: Fingerprint = field(default_factory=dict)
    normalisation: Normalisation | None = None
    client_test_indices: tuple[Tensor, ...] = ()
    client_holdouts: tuple[Tensor, ...] = ()

    @property
    def num_clients(self) -> int:
        """K."""
        return len(self.client_indices)

    def client_size(self, client: int) -> int:
        """n_k."""
        return len(self.client_indices[client])

    @property
    def has_client_tests(self) -> bool:
        """Tell whether a client has a test part."""
        return any(map(len, self.client_holdouts or self.client_test_indices))

    def normalised(self, inputs: Tensor) -> Tensor:
        """Return inputs of this data, on the CPU, as a model takes them."""
        return self.normalisation(inputs) if self.normalisation else inputs

    def class_counts(self) -> pd.DataFrame:
        """Count each client's training images by class; a ``UserError`` where there are none."""
        labels = self.train_labels
        if not are_classes(labels):
            raise UserError(
                "data_args.dataset",
                f"its labels are {labels.dtype} of {list(labels.shape)}: there are no classes to "
                "count",
            )
        parts = [part.numpy() for part in self.client_indices]
        return client_counts(labels.numpy(), parts, self.class_names)


def load_federated(spec: DataSpec, brought: UserData | None = None) -> FederatedData:
    """Load a data set and divide its training images between clients.

    ``brought`` are a user's data, in the place of what the spec names. Data with a split of their
    own keep it.
    """
    dataset = _load(spec, brought)
    if dataset.split.train:
        check_clients(len(dataset.split.train), spec.num_clients)
    elif spec.partition_method == NATURAL:
        raise UserError(
            _KEYS["method"],
            f"{NATURAL}: the data do not say whose each sample is",
            "choose another method, or give each sample's owner",
        )
    if spec.validation_fraction:
        dataset = hold_out(dataset, spec.validation_fraction, spec.seed)
    (train, test), split, held = dataset.parts, dataset.split, tuple[Tensor, ...]()
    clients = split.train or _dealt(train.labels, spec)
    if spec.client_holdout and not split.test:
        clients, held = hold_out_of_each(train.labels, clients, spec.client_holdout, spec.seed)
    return FederatedData(
        *train,
        clients,
        *test,
        num_classes=len(dataset.class_names),
        class_names=dataset.class_names,
        fingerprint=dataset.fingerprint,
        normalisation=dataset.normalisation,
        client_test_indices=split.test,
        client_holdouts=held,
    )


def _dealt(labels: Tensor, spec: DataSpec) -> tuple[Tensor, ...]:
    if spec.partition_method != "iid" and labels.ndim == 1 and (labels == labels.long()).all():
        labels = labels.long()  # counts, for instance, are dealt by their values
    elif not are_classes(labels):
        if spec.partition_method != "iid":
            raise UserError(
                _KEYS["method"],
                f"{spec.partition_method}: the labels are {labels.dtype} of {list(labels.shape)}",
                "must be iid where samples have no class, or give the data with their split",
            )
        labels = labels.new_zeros(len(labels), dtype=torch.int64)
    try:
        client_indices = partition(
            labels,
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
        raise error.at(_KEYS.get(error.where, error.where)) from error
    return tuple(map(torch.from_numpy, client_indices))


def _load(spec: DataSpec, brought: UserData | None) -> ImageDataset:
    if is_own(spec.dataset):
        return load_own_data(brought or bring_data(spec), spec)
    named = find_dataset(spec.dataset)
    assert named is not None, "a checked recipe names one"
    return named.load(spec)
