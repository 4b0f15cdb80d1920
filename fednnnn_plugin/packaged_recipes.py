"""The recipes that come with the package: found, listed, and copied to be changed."""

import difflib
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

from fednnnn_plugin.errors import UserError, printable, some_of
from fednnnn_plugin.files import user_path


def list_recipes() -> list[Path]:
    """The packaged recipes' files, sorted by name."""
    packaged = Path(str(files("fednnnn_plugin") / "recipes"))
    folder = packaged if packaged.is_dir() else Path(__file__).parents[1] / "recipes"
    return sorted(folder.glob("*.yaml"))


#: The recipe of a run that begins from none: what is not said has the usual value.
BASE = Path(__file__).with_name("base.yaml")


def find_recipe(text: str) -> Path:
    """Find an existing path, ``base``, or a packaged ``NAME``, ``NAME.yaml``, ``recipes/NAME``."""
    path, is_folder = user_path(text), False
    with suppress(OSError):  # a name longer than the file system takes
        is_folder = path.is_dir()
        if path.exists() and not is_folder:  # a run folder may have a recipe's name
            return path
    known = {recipe.stem: recipe for recipe in (BASE, *list_recipes())}
    name = path.name.removesuffix(".yaml")
    if path.parent in (Path(), Path("recipes")) and name in known:
        return known[name]
    if is_folder:
        raise UserError(printable(text), "a folder", "must be a recipe's file or name")
    nearest = difflib.get_close_matches(name[:80], known, n=3, cutoff=0.0)
    raise UserError(
        printable(text),
        f"no such file and no recipe of that name; the nearest are {', '.join(nearest)}",
    )


def copy_recipes(folder: Path) -> int:
    """Copy the packaged recipes, unless one of them is there already; return how many."""
    recipes = list_recipes()
    taken = [path.name for path in recipes if (folder / path.name).exists()]
    if taken:
        raise UserError(folder, f"it already holds {some_of(taken, 1)}: nothing was copied")
    begun = list[Path]()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in recipes:
            begun.append(folder / path.name)
            begun[-1].write_bytes(path.read_bytes())
    except OSError as error:
        for path in begun:  # or the next try would be refused
            with suppress(OSError):
                path.unlink()
        raise UserError(folder, f"cannot be written to: {error.strerror}") from None
    return len(recipes)
