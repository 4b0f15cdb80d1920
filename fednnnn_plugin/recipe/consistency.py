"""What the keys of a recipe must be to each other."""

from operator import attrgetter

from fednnnn_plugin.recipe.kinds import PAPER_MODELS
from fednnnn_plugin.recipe.schema import SECTIONS, Recipe
from fednnnn_plugin.recipe.wording import either, shown

_BACKENDS = {
    "simulation": ("sp", "MPI"),
    "cross_silo": (
        *("GRPC", "TRPC", "MPI"),
        *("MQTT_S3", "MQTT_S3_MNN", "MQTT_WEB3", "MQTT_THETASTORE"),
    ),
}
# Keys that one value of another key uses.
_OF_ONE = {
    "data_args.data_dir": ("data_args.dataset", "image_folder"),
    "data_args.image_size": ("data_args.dataset", "image_folder"),
    "data_args.test_fraction": ("data_args.dataset", "image_folder"),
    "data_args.classes_per_client": ("data_args.partition_method", "n_class"),
    "data_args.partition_alpha": ("data_args.partition_method", "dirichlet"),
    "data_args.power_law_exponent": ("data_args.partition_sizes", "power_law"),
    "train_args.start_round": ("common_args.training_type", "cross_silo"),
    "tracking_args.server_state_path": ("common_args.training_type", "cross_silo"),
    "tracking_args.save_path": ("common_args.training_type", "cross_silo"),
}


def inconsistencies(recipe: Recipe, *, foreign: bool) -> dict[str, str]:
    """Say what does not fit together: ``section.key`` to what is wrong with its value.

    Args:
        recipe: a recipe whose keys are valid one by one.
        foreign: data, model and platform are the caller's own: leave them unjudged.
    """
    train, tracking = recipe.train_args, recipe.tracking_args
    found = {}
    if train.client_num_per_round > train.client_num_in_total:
        found["train_args.client_num_per_round"] = (
            f"{train.client_num_per_round}: must be at most client_num_in_total, here "
            f"{train.client_num_in_total}"
        )
    if tracking.overwrite and tracking.resume:
        found["tracking_args.overwrite"] = "true: resume is true too; give one of them"
    if tracking.using_mlops not in (None, recipe.common_args.using_mlops):
        found["tracking_args.using_mlops"] = (
            f"{shown(tracking.using_mlops)}: common_args.using_mlops is not; give it once"
        )
    return found if foreign else found | _unfit(recipe) | _unused(recipe)


def _unfit(recipe: Recipe) -> dict[str, str]:
    data, model, device = recipe.data_args, recipe.model_args.model, recipe.device_args
    training_type, backend = recipe.common_args.training_type, recipe.comm_args.backend
    found = {}
    own = f"nnnn_{data.dataset}"
    if {model, own} <= set(PAPER_MODELS) and model != own:
        found["model_args.model"] = (
            f"{shown(model)}: does not take the images of dataset {data.dataset}; must be {own}"
        )
    if data.dataset == "image_folder" and data.data_dir is None:
        found["data_args.data_dir"] = (
            "missing; dataset image_folder needs it: a folder with a folder for each class"
        )
    if backend not in _BACKENDS[training_type]:
        found["comm_args.backend"] = (
            f"{shown(backend)}: training_type {training_type} takes "
            f"{either(_BACKENDS[training_type])}"
        )
    if device.gpu_mapping_file is not None and device.gpu_mapping_key is None:
        found["device_args.gpu_mapping_key"] = (
            "missing; gpu_mapping_file needs it: the name of a mapping in that file"
        )
    return found


def _unused(recipe: Recipe) -> dict[str, str]:
    found = {}
    for name, (other, user) in _OF_ONE.items():
        section, key = name.split(".")
        value, unused = attrgetter(name)(recipe), SECTIONS[section].model_fields[key].default
        if value != unused and attrgetter(other)(recipe) != user:
            of = f"{other.split('.')[1]} {user}"
            found[name] = f"{shown(value)}: only {of} uses it; leave it out or at {shown(unused)}"
    return found
