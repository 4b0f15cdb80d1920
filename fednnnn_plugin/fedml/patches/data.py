"""Our partitioner in ``fedml.data.load``."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.fedml import compatibility
from fednnnn_plugin.fedml.methods import names_ours, require_code_allowed, simulates_ours
from fednnnn_plugin.fedml.patches import wrap
from fednnnn_plugin.user_code import names_code

DATASETS = ("mnist", "cifar10", "digits", "image_folder")

# Data sets, partitions and keys that FedML has no other meaning for; FedML's own Dirichlet is
# called hetero, and some of its loaders read no partition_method.
_OUR_DATASETS = ("digits", "image_folder")
_OUR_METHODS = ("n_class", "dirichlet_by_class")
_OUR_KEYS = ("partition_sizes", "classes_per_client")


def apply(_fedml: ModuleType) -> None:
    """Let ``fedml.data.load`` load and split our data sets where they are asked for."""
    wrap(("fedml.data", "fedml.data.data_loader"), "load", _load)


def _load(original: Callable[..., Any], args: Any, *rest: Any, **named: Any) -> Any:
    reason = _why_ours(args)
    if reason is None:
        return original(args, *rest, **named)
    compatibility.require()
    dataset = getattr(args, "dataset", None)
    if dataset not in DATASETS and not names_code(dataset):
        raise UserError(
            f"data_args.dataset: {dataset!r}: {reason} splits one of {', '.join(DATASETS)}; for "
            "another data set name one of FedML's partition methods"
        )
    return load(args)


def _why_ours(args: Any) -> str | None:
    """Return what says that the data is ours to load, or None where it is FedML's.

    Under FedML's own optimizers that is a name or key that only we have: ``iid`` FedML has too,
    and by a name that it does not know it would train on CIFAR-10.
    """
    dataset = getattr(args, "dataset", None)
    method = getattr(args, "partition_method", None)
    if dataset in _OUR_DATASETS or names_code(dataset):
        return f"dataset {dataset}"
    ours = names_ours(args)
    if not ours and dataset not in DATASETS:
        return None  # FedML may not even read how it is to be split
    if method in _OUR_METHODS or (ours and method == "dirichlet"):
        return f"partition_method {method}"
    if ours and dataset in DATASETS and method is None:
        method = "iid"  # a recipe's default
    if method != "iid":
        return None
    keys = [key for key in _OUR_KEYS if getattr(args, key, None) is not None]
    if keys:
        return keys[0]
    return f"partition_method {method}" if ours and dataset in DATASETS else None


def load(args: Any) -> tuple[list[Any], int]:
    """Load and split a data set of ours."""
    from fednnnn_plugin.engine.ranks import Ranks, ending_together
    from fednnnn_plugin.engine.settings import load_data
    from fednnnn_plugin.fedml.loaders import fedml_dataset
    from fednnnn_plugin.fedml.processes import end_federation_together, simulation_ranks
    from fednnnn_plugin.fedml.settings import script_recipe

    end_federation_together(args)
    allow_code = names_code(args.dataset)
    if allow_code:
        require_code_allowed("data_args.dataset", args.dataset)
    # Of the settings only those of the data are used, so the method is one without coefficients.
    recipe = script_recipe(
        args, method="PaperFedAvg", custom_trainer=True, unread=("epochs", "learning_rate")
    )
    ranks = simulation_ranks(recipe) if simulates_ours(args) else Ranks()
    with ending_together(ranks):
        data = load_data(recipe, ranks, allow_code=allow_code)
    seed, batch_size = recipe.common_args.random_seed, recipe.train_args.batch_size
    return fedml_dataset(data, batch_size, seed), data.num_classes
