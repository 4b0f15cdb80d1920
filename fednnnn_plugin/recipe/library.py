"""The recipes that come with the package: found, listed, and copied to be changed."""

import difflib
from contextlib import suppress
from importlib.resources import files
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from fednnnn_plugin.data.load import is_present
from fednnnn_plugin.errors import UserError, printable
from fednnnn_plugin.recipe.load import load_recipe

_COLUMNS = ("data set", "classes", "sizes", "method", "clients", "rounds", "data", "name")


def list_recipes() -> list[Path]:
    """The packaged recipes' files, sorted by name."""
    packaged = Path(str(files("fednnnn_plugin") / "recipes"))
    folder = packaged if packaged.is_dir() else Path(__file__).parents[2] / "recipes"
    return sorted(folder.glob("*.yaml"))


def find_recipe(text: str) -> Path:
    """Find an existing path, or a packaged ``NAME``, ``NAME.yaml`` or ``recipes/NAME.yaml``."""
    path = Path(text)
    with suppress(OSError):  # a name longer than the file system takes
        if path.exists() and not path.is_dir():  # a run folder may have a recipe's name
            return path
    known = {recipe.stem: recipe for recipe in list_recipes()}
    name = path.name.removesuffix(".yaml")
    if path.parent in (Path(), Path("recipes")) and name in known:
        return known[name]
    nearest = difflib.get_close_matches(name[:80], known, n=3, cutoff=0.0)
    raise UserError(
        f"{printable(text)}: no such file and no recipe of that name; "
        f"the nearest are {', '.join(nearest)}"
    )


def catalogue() -> str:
    """What each packaged recipe is, and whether its data is there: a table of text."""
    rows = []
    for path in list_recipes():
        recipe = load_recipe(path)
        data, train = recipe.data_args, recipe.train_args
        iid = data.partition_method == "iid"
        rows.append(
            (
                data.dataset,
                "all" if iid else f"{data.classes_per_client} a client",
                data.partition_sizes.replace("_", " "),
                train.federated_optimizer,
                f"{train.client_num_in_total:>7}",
                f"{train.comm_round:>6}",
                "present" if is_present(data.dataset, data.cache_dir) else "missing",
                path.stem,
            )
        )
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *rows, strict=True)]

    def line(cells: tuple[str, ...]) -> str:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        return "  ".join(padded).rstrip()

    lines = ["Recipes: fedml run NAME.yaml", "", line(_COLUMNS)]
    for _, group in groupby(rows, key=itemgetter(slice(3))):
        first, *others = group
        lines += ["", line(first), *(line(("", "", "", *row[3:])) for row in others)]
    return "\n".join(lines)


def copy_recipes(folder: Path) -> int:
    """Copy the packaged recipes, unless one of them is there already; return how many."""
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
