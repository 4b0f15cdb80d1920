"""What the keys of a recipe must be to each other."""

from collections.abc import Iterable, Iterator
from operator import attrgetter

from fednnnn_plugin.data.sets import DATASETS, HUB_NAME
from fednnnn_plugin.errors import one_of, shown
from fednnnn_plugin.recipe.schema import SECTIONS, Recipe
from fednnnn_plugin.user_code import HUB, is_own

_DATASET = "data_args.dataset"
_FOLDERS = ((_DATASET, "image_folder"), (_DATASET, "leaf"))
_FILES = (*_FOLDERS, (_DATASET, HUB_NAME))
_BY_CLASS = ("data_args.partition_method", "dirichlet_by_class")
_NATURAL = ("data_args.partition_method", "natural")
_FREE = (_BY_CLASS[1], _NATURAL[1])  # leave the sizes free
_POWER_LAW = ("data_args.partition_sizes", "power_law")
_PER_CLIENT = tuple(("validation_args.per_client", value) for value in (True, "end"))
_CROSS_SILO = (("common_args.training_type", "cross_silo"),)
_FOLDER_OF = {
    "image_folder": "a folder with a folder for each class",
    "leaf": "a folder with LEAF's train/*.json and test/*.json",
}
# Keys that only these values of other keys use.
_OF_SOME = {
    "data_args.data_dir": _FOLDERS,
    "data_args.image_size": _FILES,
    "data_args.test_fraction": (*_FILES, _NATURAL),
    "data_args.test_division": (_NATURAL,),
    "data_args.partition_by": (_NATURAL,),
    "data_args.classes_per_client": (("data_args.partition_method", "n_class"),),
    "data_args.partition_alpha": (("data_args.partition_method", "dirichlet"), _BY_CLASS),
    "data_args.min_samples": (_POWER_LAW, _BY_CLASS, _NATURAL),
    "data_args.power_law_exponent": (_POWER_LAW,),
    "validation_args.holdout": _PER_CLIENT,
    "train_args.client_threads": _CROSS_SILO,
    "train_args.start_round": _CROSS_SILO,
    "tracking_args.server_state_path": _CROSS_SILO,
    "tracking_args.keep_states": _CROSS_SILO,
    "tracking_args.save_path": _CROSS_SILO,
    "tracking_args.metrics_path": _CROSS_SILO,
    "tracking_args.prometheus_path": _CROSS_SILO,
}


def cross_silo_keys() -> list[str]:
    """Return the keys that a cross-silo federation alone uses."""
    return [name.partition(".")[2] for name, users in _OF_SOME.items() if users == _CROSS_SILO]


def metric_names(metrics: Iterable[str] | None) -> list[str]:
    """Return what metrics are called in records: a function of the user's by its own name."""
    return [name.rpartition(":")[2] for name in metrics or ()]


def _value(recipe: Recipe, key: str) -> object:
    """Return a key's value; of a data set of the hub the name that stands for all."""
    value = attrgetter(key)(recipe)
    return HUB_NAME if key == _DATASET and str(value).startswith(HUB) else value


def inconsistencies(recipe: Recipe, *, foreign: bool) -> Iterator[tuple[str, str]]:
    """Say which ``section.key`` has a value that does not fit, or none, and why.

    A foreign platform is left unjudged.
    """
    data, train, tracking = recipe.data_args, recipe.train_args, recipe.tracking_args
    if train.client_num_per_round > train.client_num_in_total:
        most = f"must be at most client_num_in_total, here {train.client_num_in_total}"
        yield "train_args.client_num_per_round", most
    if tracking.overwrite and tracking.resume:
        yield "tracking_args.overwrite", "resume is true too; give one of them"
    yield from _of_training(recipe)
    if foreign:
        return
    yield from _unmeasured(recipe)
    if data.dataset in _FOLDER_OF and data.data_dir is None:
        yield "data_args.data_dir", f"dataset {data.dataset} needs it: {_FOLDER_OF[data.dataset]}"
    if recipe.device_args.gpu_mapping_file and recipe.device_args.gpu_mapping_key is None:
        what = "gpu_mapping_file needs it: the name of a mapping in that file"
        yield "device_args.gpu_mapping_key", what
    if data.partition_sizes != "balanced" and data.partition_method in _FREE:
        free = f"partition_method {data.partition_method} leaves the sizes free"
        yield "data_args.partition_sizes", f"{free}; leave it out or at balanced"
    named = None if data.partition_by is None else _value(recipe, _DATASET)
    if named in DATASETS and named != HUB_NAME:
        yield "data_args.partition_by", f"dataset {named} has no columns; leave it out"
    for name, users in _OF_SOME.items():
        section, key = name.split(".")
        unused = SECTIONS[section].model_fields[key].default
        unwanted = all(_value(recipe, other) != user for other, user in users)
        if unwanted and attrgetter(name)(recipe) != unused:
            of = " or ".join(
                f"{other.split('.')[1]} {user if isinstance(user, str) else shown(user)}"
                for other, user in users
            )
            hint = f"leave it out or at {shown(unused)}"
            if users[0] == _FOLDERS[0] and is_own(data.dataset):
                hint = "an argument of your function needs another name"
            yield name, f"only {of} uses it; {hint}"


def _of_training(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Say which keys of the clients' training exclude each other."""
    train = recipe.train_args
    if train.learning_rate_schedule is not None and train.learning_rate_decay is not None:
        yield "train_args.learning_rate_decay", "learning_rate_schedule says it; leave it out"
    sampling = train.client_sampling or "uniform"
    if train.client_availability is not None and sampling not in ("uniform", "round_robin"):
        why = f"client_sampling is {shown(sampling)}: must be uniform or round_robin beside it"
        yield "train_args.client_availability", why
    if train.epochs is not None and train.local_steps is not None:
        yield "train_args.local_steps", "epochs is set too; leave one out, or set epochs: null"
    if recipe.client_method.needs_plain_sgd:
        other = train.client_optimizer.lower() != "sgd"
        for key in ("client_optimizer",) if other else ("client_optimizer_args", "max_grad_norm"):
            if getattr(train, key):
                named = train.client_method or recipe.rule.client_method
                yield f"train_args.{key}", f"client_method {named} takes plain sgd; leave it out"


def _unmeasured(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Say what would not be measured of a run that is to be stopped early."""
    if recipe.validation_args.per_client == "end" and recipe.validation_args.stop:
        why = "stop may end the run before its last round; must be true, or leave stop out"
        yield "validation_args.per_client", why
    metric = (recipe.validation_args.stop or {}).get("metric", "accuracy")
    measured = [*metric_names(recipe.validation_args.metrics), "accuracy", "loss"]
    measured += ["worst_10"] * bool(recipe.validation_args.per_client)
    if metric not in measured:
        yield "validation_args.stop", f"metric: {shown(metric)}: {one_of(measured, metric)}"
