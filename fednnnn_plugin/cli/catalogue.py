"""The packaged recipes as a list to read, and as files to take away."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pandas as pd

from fednnnn_plugin.data.load import is_present
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.recipe.library import list_recipes
from fednnnn_plugin.recipe.load import load_recipe


def catalogue() -> str:
    """Return what each packaged recipe is, and whether its data is there."""
    present = cache(is_present)  # a tree of images takes a while to list
    rows = []
    for path in list_recipes():
        recipe = load_recipe(path)
        data, train = recipe.data_args, recipe.train_args
        there = present(data.dataset, data.cache_dir)
        iid = data.partition_method == "iid"
        rows.append(
            {
                "data set": data.dataset,
                "classes": "all" if iid else f"{data.classes_per_client} a client",
                "sizes": data.partition_sizes.replace("_", " "),
                "method": train.federated_optimizer,
                "clients": train.client_num_in_total,
                "rounds": train.comm_round,
                "data": "present" if there else "missing",
                "name": recipe.name,
            }
        )
    table = pd.DataFrame(rows)
    return f"Recipes: fedml run NAME.yaml\n\n{table.to_string(index=False)}"


def copy_recipes(folder: Path) -> int:
    """Copy the packaged recipes; return how many.

    Raises:
        UserError: one of them is there already, or the folder cannot be written to.
    """
    recipes = list_recipes()
    taken = [path.name for path in recipes if (folder / path.name).exists()]
    if taken:
        more = f" and {len(taken) - 1} more" if len(taken) > 1 else ""
        raise UserError(f"{folder}: it already holds {taken[0]}{more}: nothing was copied")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in recipes:
            (folder / path.name).write_bytes(path.read_bytes())
    except OSError as error:
        raise UserError(f"{folder}: cannot be written to: {error.strerror}") from None
    return len(recipes)
