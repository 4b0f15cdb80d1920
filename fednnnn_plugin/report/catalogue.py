"""The packaged recipes as a list to read, and as files to take away."""

from functools import cache
from pathlib import Path

from fednnnn_plugin.data.load import is_present
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.recipe.library import list_recipes
from fednnnn_plugin.recipe.load import load_recipe
from fednnnn_plugin.report.tables import Cell, Table


def catalogue() -> Table:
    """Return what each packaged recipe is, and whether its data is there."""
    present = cache(is_present)  # a tree of images takes a while to list
    rows = []
    for path in list_recipes():
        recipe = load_recipe(path)
        data, train = recipe.data_args, recipe.train_args
        there = present(data.dataset, data.cache_dir)
        texts = (
            data.dataset,
            "all" if data.partition_method == "iid" else f"{data.classes_per_client} a client",
            data.partition_sizes.replace("_", " "),
            train.federated_optimizer,
            str(train.client_num_in_total),
            str(train.comm_round),
            "present" if there else "missing",
            recipe.name,
        )
        rows.append(tuple(Cell(text) for text in texts))
    return Table(
        "Recipes: fedml run NAME.yaml",
        ("data set", "classes", "sizes", "method", "clients", "rounds", "data", "name"),
        tuple(rows),
        numeric=frozenset({4, 5}),
        groups=3,
    )


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
