"""The data of a recipe: what is loaded, and how it is partitioned."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fednnnn_plugin.data.federated import load_federated
from fednnnn_plugin.data.spec import CLIENT_HOLDOUT, DataSpec
from fednnnn_plugin.files import user_path
from fednnnn_plugin.packaged_recipes import find_recipe
from fednnnn_plugin.recipe.load import load_recipe
from fednnnn_plugin.recipe.schema import DataArgs, Recipe
from fednnnn_plugin.user_code import is_own

if TYPE_CHECKING:
    import pandas as pd


def data_spec(recipe: Recipe) -> DataSpec:
    """Return what the recipe says of its data.

    The section's keys are the fields of :class:`DataSpec`; others are its function's arguments.
    """
    data = recipe.data_args
    folder = None if data.data_dir is None else user_path(data.data_dir)
    validation = recipe.validation_args
    return DataSpec(
        **data.model_dump(include=set(DataArgs.model_fields))
        | {"data_cache_dir": data.cache_dir, "data_dir": folder},
        arguments=data.arguments,
        num_clients=recipe.train_args.client_num_in_total,
        seed=recipe.common_args.random_seed,
        allow_code=recipe.allow_code,
        loss=loss_name(recipe),
        client_holdout=(validation.holdout or CLIENT_HOLDOUT) if validation.per_client else 0.0,
    )


def loss_name(recipe: Recipe) -> str:
    """Return the name of the loss that the recipe trains by; of a user's own nothing is known."""
    loss = recipe.train_args.loss or "cross_entropy"
    return "" if is_own(loss) else loss


def partition_counts(recipe: Recipe | Path | str, *, allow_code: bool = False) -> pd.DataFrame:
    """Return how many training images of each class every client of a recipe holds."""
    if isinstance(recipe, Recipe):
        recipe = recipe.model_copy(update={"allow_code": allow_code})
    else:
        recipe = load_recipe(find_recipe(str(recipe)), allow_code=allow_code)
    return load_federated(data_spec(recipe)).class_counts()
