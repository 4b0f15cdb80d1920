"""What the keys of a recipe must be to each other."""

from collections.abc import Iterator

from fednnnn_plugin.recipe.method import Problem
from fednnnn_plugin.recipe.schema import DataArgs, Recipe
from fednnnn_plugin.recipe.values import PAPER_MODELS
from fednnnn_plugin.recipe.wording import either, shown

_CROSS_SILO_BACKENDS = (
    "GRPC", "TRPC", "MPI", "MQTT_S3", "MQTT_S3_MNN", "MQTT_WEB3", "MQTT_THETASTORE"
)  # fmt: skip
_BACKENDS = {"simulation": ("sp", "MPI"), "cross_silo": _CROSS_SILO_BACKENDS}
# Keys of data_args that one value of another key uses.
_OF_ONE = {
    "data_dir": ("dataset", "image_folder"),
    "image_size": ("dataset", "image_folder"),
    "test_fraction": ("dataset", "image_folder"),
    "classes_per_client": ("partition_method", "n_class"),
    "partition_alpha": ("partition_method", "dirichlet"),
    "power_law_exponent": ("partition_sizes", "power_law"),
}


def inconsistencies(recipe: Recipe, *, foreign: bool) -> list[Problem]:
    """List what does not fit together.

    Args:
        recipe: a recipe whose keys are valid one by one.
        foreign: data, model and platform are the caller's own: leave them unjudged.
    """
    found = [*_everywhere(recipe)]
    if not foreign:
        found += [*_data(recipe), *_platform(recipe)]
    return found


def _everywhere(recipe: Recipe) -> Iterator[Problem]:
    train, tracking = recipe.train_args, recipe.tracking_args
    if train.client_num_per_round > train.client_num_in_total:
        text = f"must be at most client_num_in_total, here {train.client_num_in_total}"
        yield _wrong("train_args.client_num_per_round", train.client_num_per_round, text)
    if tracking.overwrite and tracking.resume:
        yield _wrong("tracking_args.overwrite", True, "resume is true too; give one of them")
    if tracking.using_mlops not in (None, recipe.common_args.using_mlops):
        text = "common_args.using_mlops is otherwise; give it once"
        yield _wrong("tracking_args.using_mlops", tracking.using_mlops, text)


def _data(recipe: Recipe) -> Iterator[Problem]:
    data, model = recipe.data_args, recipe.model_args.model
    own = f"nnnn_{data.dataset}"
    if {model, own} <= set(PAPER_MODELS) and model != own:
        text = f"does not take the images of dataset {data.dataset}; must be {own}"
        yield _wrong("model_args.model", model, text)
    if data.dataset == "image_folder" and data.data_dir is None:
        text = "missing; dataset image_folder needs it: a folder with a folder for each class"
        yield Problem("data_args.data_dir", text)
    for key, (of, user) in _OF_ONE.items():
        value, unused = getattr(data, key), DataArgs.model_fields[key].default
        if value != unused and getattr(data, of) != user:
            text = f"only {of} {user} uses it; leave it out or at {shown(unused)}"
            yield _wrong(f"data_args.{key}", value, text)


def _platform(recipe: Recipe) -> Iterator[Problem]:
    training_type, backend = recipe.common_args.training_type, recipe.comm_args.backend
    if backend not in _BACKENDS[training_type]:
        text = f"training_type {training_type} takes {either(_BACKENDS[training_type])}"
        yield _wrong("comm_args.backend", backend, text)
    device = recipe.device_args
    if device.gpu_mapping_file is not None and device.gpu_mapping_key is None:
        text = "missing; gpu_mapping_file needs it: the name of a mapping in that file"
        yield Problem("device_args.gpu_mapping_key", text)
    if training_type != "simulation":
        return
    if recipe.train_args.start_round:
        text = "only training_type cross_silo uses it; a simulation goes on with --resume"
        yield _wrong("train_args.start_round", recipe.train_args.start_round, text)
    for key in ("server_state_path", "save_path"):
        value = getattr(recipe.tracking_args, key)
        if value is not None:
            text = "only training_type cross_silo uses it; a simulation writes its run folder"
            yield _wrong(f"tracking_args.{key}", value, text)


def _wrong(key: str, value: object, text: str) -> Problem:
    return Problem(key, f"{shown(value)}: {text}")
