"""The packaged recipes as a list to read, and as files to take away."""

from functools import cache
from pathlib import Path
from typing import Any

from fednnnn_plugin.data.load import is_present
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.recipe.library import list_recipes
from fednnnn_plugin.recipe.reading import read_file, read_yaml

_COLUMNS = ("data set", "classes", "sizes", "method", "clients", "rounds", "data", "name")
_GROUPED = 3


def catalogue() -> str:
    """What each packaged recipe is, and whether its data is there: a table of text."""
    present = cache(is_present)  # a tree of images takes a while to list
    rows = [_row(path, present) for path in list_recipes()]
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *rows, strict=True)]

    def line(cells: tuple[str, ...]) -> str:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        return "  ".join(padded).rstrip()

    rule = tuple("─" * width for width in widths)
    lines = ["Recipes: fedml run NAME.yaml", "", line(_COLUMNS), line(rule)]
    for index, row in enumerate(rows):
        if index and row[:_GROUPED] == rows[index - 1][:_GROUPED]:
            lines.append(line(("",) * _GROUPED + row[_GROUPED:]))
        else:
            lines += [*([""] if index else []), line(row)]
    return "\n".join(lines)


def _row(path: Path, present: Any) -> tuple[str, ...]:
    recipe: Any = read_yaml(
        read_file(path)
    )  # ours: valid, which takes the rules, and torch, to say
    data, train = recipe["data_args"], recipe["train_args"]
    folder = Path(data["data_cache_dir"]).expanduser()
    per_client = data.get("classes_per_client", 2)
    return (
        data["dataset"],
        "all" if data["partition_method"] == "iid" else f"{per_client} a client",
        data["partition_sizes"].replace("_", " "),
        train["federated_optimizer"],
        str(train["client_num_in_total"]).rjust(len("clients")),
        str(train["comm_round"]).rjust(len("rounds")),
        "present" if present(data["dataset"], folder) else "missing",
        path.stem,
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
