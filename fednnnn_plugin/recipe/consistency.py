"""What the keys of a recipe must be to each other."""

from collections.abc import Iterator
from operator import attrgetter

from fednnnn_plugin.errors import shown
from fednnnn_plugin.recipe.schema import SECTIONS, Recipe

# Keys that one value of another key uses.
_OF_ONE = {
    "data_args.data_dir": ("data_args.dataset", "image_folder"),
    "data_args.image_size": ("data_args.dataset", "image_folder"),
    "data_args.test_fraction": ("data_args.dataset", "image_folder"),
    "data_args.classes_per_client": ("data_args.partition_method", "n_class"),
    "data_args.partition_alpha": ("data_args.partition_method", "dirichlet"),
    "data_args.min_samples": ("data_args.partition_sizes", "power_law"),
    "data_args.power_law_exponent": ("data_args.partition_sizes", "power_law"),
    "train_args.client_threads": ("common_args.training_type", "cross_silo"),
    "train_args.start_round": ("common_args.training_type", "cross_silo"),
    "tracking_args.server_state_path": ("common_args.training_type", "cross_silo"),
    "tracking_args.save_path": ("common_args.training_type", "cross_silo"),
    "tracking_args.metrics_path": ("common_args.training_type", "cross_silo"),
}


def inconsistencies(recipe: Recipe, *, foreign: bool) -> Iterator[tuple[str, str]]:
    """Say which ``section.key`` does not fit, and why; a foreign platform is left unjudged."""
    data, train, tracking = recipe.data_args, recipe.train_args, recipe.tracking_args
    if train.client_num_per_round > train.client_num_in_total:
        most = f"must be at most client_num_in_total, here {train.client_num_in_total}"
        yield "train_args.client_num_per_round", f"{train.client_num_per_round}: {most}"
    if tracking.overwrite and tracking.resume:
        yield "tracking_args.overwrite", "true: resume is true too; give one of them"
    if foreign:
        return
    if data.dataset == "image_folder" and data.data_dir is None:
        what = "a folder with a folder for each class"
        yield "data_args.data_dir", f"missing; dataset image_folder needs it: {what}"
    if recipe.device_args.gpu_mapping_file and recipe.device_args.gpu_mapping_key is None:
        what = "the name of a mapping in that file"
        yield "device_args.gpu_mapping_key", f"missing; gpu_mapping_file needs it: {what}"
    for name, (other, user) in _OF_ONE.items():
        section, key = name.split(".")
        value, unused = attrgetter(name)(recipe), SECTIONS[section].model_fields[key].default
        if value != unused and attrgetter(other)(recipe) != user:
            of = f"only {other.split('.')[1]} {user} uses it"
            yield name, f"{shown(value)}: {of}; leave it out or at {shown(unused)}"
