"""The recipes that come with the package."""

import difflib
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

from fednnnn_plugin.errors import UserError, printable


def list_recipes() -> list[Path]:
    """The packaged recipes' files, sorted by name."""
    return sorted(_folder().glob("*.yaml"))


def find_recipe(text: str) -> Path:
    """Find a recipe by path or by name.

    Args:
        text: an existing path, which wins; else ``NAME``, ``NAME.yaml`` or ``recipes/NAME.yaml``
            of a packaged recipe.

    Raises:
        UserError: neither exists; names the nearest packaged recipes.
    """
    path = Path(text)
    with suppress(OSError):  # a name longer than the file system takes
        if path.exists():
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


def _folder() -> Path:
    packaged = Path(str(files("fednnnn_plugin") / "recipes"))
    if packaged.is_dir():
        return packaged
    return Path(__file__).parents[2] / "recipes"
