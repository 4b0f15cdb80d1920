"""What the keys of a recipe must be to each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from fednnnn_plugin.recipe.values import PAPER_MODELS
from fednnnn_plugin.recipe.wording import shown

if TYPE_CHECKING:
    from fednnnn_plugin.recipe.schema import Recipe

COEFFICIENTS: dict[str, tuple[str, ...]] = {
    "FedNNNN": ("beta", "gamma"),
    "NormNorm": ("beta",),
    "Momentum": ("gamma",),
    "PaperFedAvg": (),
    "PaperFedProx": ("prox_mu",),
    "FedExP": ("fedexp_epsilon",),
    "FedAdam": ("server_lr", "server_beta1", "server_beta2", "server_tau"),
    "FedYogi": ("server_lr", "server_beta1", "server_beta2", "server_tau"),
}
"""The hyperparameters that each method needs; it takes no other of them."""

DEFAULTS = {
    "server_beta1": 0.9,
    "server_beta2": 0.99,
    "server_tau": 1e-3,
    "fedexp_epsilon": 1e-3,
}
"""The values that a method takes where its recipe has none; the others have no default."""

METHODS = tuple(COEFFICIENTS)

_ALLOWED = {
    "beta": "a finite number greater than 0",
    "gamma": "a number of at least 0 and less than 1",
    "prox_mu": "a finite number of at least 0",
    "server_lr": "a finite number greater than 0",
    "server_beta1": "a number of at least 0 and less than 1",
    "server_beta2": "a number of at least 0 and less than 1",
    "server_tau": "a finite number greater than 0",
    "fedexp_epsilon": "a finite number greater than 0",
}
_CROSS_SILO_BACKENDS = (
    "GRPC", "TRPC", "MPI", "MQTT_S3", "MQTT_S3_MNN", "MQTT_WEB3", "MQTT_THETASTORE"
)  # fmt: skip
_BACKENDS = {"simulation": ("sp", "MPI"), "cross_silo": _CROSS_SILO_BACKENDS}


class Problem(NamedTuple):
    """A value that another key forbids. ``value`` is None where the key is missing."""

    section: str
    key: str
    value: object
    text: str


def problems(recipe: Recipe, *, foreign: bool) -> list[Problem]:
    """List what does not fit together.

    Args:
        recipe: a recipe whose keys are valid one by one.
        foreign: data, model and platform are the caller's own: leave them unjudged.
    """
    found = [*_coefficients(recipe), *_clients(recipe)]
    if not foreign:
        found += [*_data(recipe), *_platform(recipe)]
    return found


def _coefficients(recipe: Recipe) -> Iterator[Problem]:
    train = recipe.train_args
    method = train.federated_optimizer
    for key, allowed in _ALLOWED.items():
        value = getattr(train, key)
        if value is None and key in COEFFICIENTS[method]:
            yield Problem("train_args", key, None, f"missing; {method} needs it: {allowed}")
        elif value is not None and key not in COEFFICIENTS[method]:
            users = " and ".join(m for m in METHODS if key in COEFFICIENTS[m])
            text = f"{method} does not use it; leave it out or null (it belongs to {users})"
            yield Problem("train_args", key, value, text)


def _clients(recipe: Recipe) -> Iterator[Problem]:
    train = recipe.train_args
    if train.client_num_per_round > train.client_num_in_total:
        text = f"must be at most client_num_in_total, here {train.client_num_in_total}"
        yield Problem("train_args", "client_num_per_round", train.client_num_per_round, text)


def _data(recipe: Recipe) -> Iterator[Problem]:
    data, model = recipe.data_args, recipe.model_args.model
    own = f"nnnn_{data.dataset}"
    if {model, own} <= set(PAPER_MODELS) and model != own:
        text = f"does not take the images of dataset {data.dataset}; must be {own}"
        yield Problem("model_args", "model", model, text)
    yield from _image_folder(recipe)
    if data.partition_method != "n_class" and data.classes_per_client != 2:
        text = "only partition_method n_class uses it; leave it out or at 2"
        yield Problem("data_args", "classes_per_client", data.classes_per_client, text)
    if data.partition_sizes != "power_law" and data.power_law_exponent != 1.0:
        text = "only partition_sizes power_law uses it; leave it out or at 1.0"
        yield Problem("data_args", "power_law_exponent", data.power_law_exponent, text)


def _image_folder(recipe: Recipe) -> Iterator[Problem]:
    data = recipe.data_args
    if data.dataset == "image_folder":
        if data.data_dir is None:
            text = "missing; dataset image_folder needs it: a folder with a folder for each class"
            yield Problem("data_args", "data_dir", None, text)
        return
    for key, unused in ("data_dir", None), ("image_size", None), ("test_fraction", 0.2):
        value = getattr(data, key)
        if value != unused:
            text = f"only dataset image_folder uses it; leave it out or at {shown(unused)}"
            yield Problem("data_args", key, value, text)


def _platform(recipe: Recipe) -> Iterator[Problem]:
    training_type = recipe.common_args.training_type
    allowed = _BACKENDS[training_type]
    if recipe.comm_args.backend not in allowed:
        text = f"training_type {training_type} takes one of {', '.join(allowed)}"
        yield Problem("comm_args", "backend", recipe.comm_args.backend, text)
    device = recipe.device_args
    if device.gpu_mapping_file is not None and device.gpu_mapping_key is None:
        text = "missing; gpu_mapping_file needs it: the name of a mapping in that file"
        yield Problem("device_args", "gpu_mapping_key", None, text)
    if training_type != "simulation":
        return
    if recipe.train_args.start_round:
        text = "only training_type cross_silo uses it; a simulation goes on with --resume"
        yield Problem("train_args", "start_round", recipe.train_args.start_round, text)
    for key in ("server_state_path", "save_path"):
        value = getattr(recipe.tracking_args, key)
        if value is not None:
            text = "only training_type cross_silo uses it; a simulation writes its run folder"
            yield Problem("tracking_args", key, value, text)
