"""Our partitioner in ``fedml.data.load``."""

from collections.abc import Callable
from typing import Any

from fednnnn_plugin.errors import UserError, printable
from fednnnn_plugin.fedml import compatibility
from fednnnn_plugin.fedml.patches.runner import is_ours
from fednnnn_plugin.fedml.patches.wrapping import wrap
from fednnnn_plugin.user_code import names_code

DATASETS = ("mnist", "cifar10", "digits", "image_folder")
PARTITION_METHODS = ("iid", "n_class")


def apply() -> None:
    """Let ``fedml.data.load`` split our data sets where ``partition_method`` is one of ours."""
    wrap(("fedml.data", "fedml.data.data_loader"), "load", _load)


def _load(original: Callable[..., Any], args: Any, *rest: Any, **named: Any) -> Any:
    method = getattr(args, "partition_method", None)
    dataset = getattr(args, "dataset", None)
    if names_code(dataset):
        raise UserError(
            f"data_args.dataset: {printable(dataset)!r}: only fednnnn run calls a function; load "
            "the data in your script and give it to FedMLRunner"
        )
    if method not in PARTITION_METHODS:
        return original(args, *rest, **named)
    compatibility.require()
    if dataset not in DATASETS:
        raise UserError(
            f"data_args.dataset: {dataset!r}: partition_method {method} splits one of "
            f"{', '.join(DATASETS)}; for another data set name one of FedML's partition methods"
        )
    return load(args)


def load(args: Any) -> tuple[list[Any], int]:
    """Load and split a data set of ours.

    Args:
        args: FedML's arguments, under any optimizer: ours, FedML's own, or the user's.

    Returns:
        FedML's eight values (see ``loaders.fedml_dataset``), and the number of classes.

    Raises:
        UserError: a value out of range, a split that is impossible, or data that is not there.
    """
    from fednnnn_plugin.engine.endings import ending_together
    from fednnnn_plugin.engine.ranks import Solo
    from fednnnn_plugin.engine.settings import load_data
    from fednnnn_plugin.fedml.loaders import fedml_dataset
    from fednnnn_plugin.fedml.processes import simulation_ranks
    from fednnnn_plugin.recipe import recipe_from_args

    # Of the settings only those of the data are used, so the method is one without coefficients.
    recipe = recipe_from_args(args, method="PaperFedAvg", custom_trainer=True)
    ranks = simulation_ranks(recipe) if is_ours(args) else Solo()
    with ending_together(ranks):
        data = load_data(recipe, ranks)
    seed, batch_size = recipe.common_args.random_seed, recipe.train_args.batch_size
    return fedml_dataset(data, batch_size, seed), data.num_classes
