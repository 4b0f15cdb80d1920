"""A user's own code, named ``module:name`` in a recipe: imported where the user allows it."""

import importlib
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from fednnnn_plugin.errors import UserError, printable
from fednnnn_plugin.seeds import isolated_generators

_PACKAGE = str(Path(__file__).parent)
_IMPORTLIB = str(Path(importlib.__file__).parent)
_INSTALLED = tuple(sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib"))
_ABSENT = object()


def names_code(text: object) -> bool:
    """Tell whether a name in a recipe is ``module:name``: the user's code."""
    if not isinstance(text, str):
        return False
    module, colon, name = text.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), name))


def refuse_code(where: str, reference: str) -> UserError:
    """The error of code that a recipe's key names and the user has not allowed."""
    return UserError(
        f"{where}: {printable(reference)!r} is code that the recipe asks to run: add --allow-code "
        "if you trust it"
    )


def load_code(reference: str, where: str) -> object:
    """Import what ``module:name`` is; the caller has asked whether it may.

    The current directory is importable from then on, before all others, as it is for ``python
    -m``. Whatever is wrong with it is a ``UserError`` that names ``where``, the recipe's key. What
    a module draws when it is imported is the same in every run, whichever key imports it first.
    """
    where = f"{where}: {printable(reference)}"
    if not names_code(reference):
        raise UserError(f"{where}: must be module:name")
    module_name, _, name = reference.partition(":")
    try:
        if sys.path[:1] != [str(Path.cwd())]:
            sys.path.insert(0, str(Path.cwd()))
        with on_threads(1), isolated_generators(0, f"import {module_name}"):
            found: object = getattr(importlib.import_module(module_name), name, _ABSENT)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module_name}.".startswith(f"{missing}."):
            raise UserError(
                f"{where}: no module {missing}: it must be installed, or in the current "
                f"directory, {printable(Path.cwd())}"
            ) from error
        raise UserError(f"{where}: does not import: {told(error)}") from error
    if found is _ABSENT:
        raise UserError(f"{where}: {name} is not there, in module {module_name}")
    return found


def call_code(
    function: object, where: str, call: Callable[[Callable[..., object]], object]
) -> object:
    """Return what ``call`` gets from a function that `load_code` found, on one thread.

    What goes wrong is a ``UserError`` that begins with ``where``.
    """
    if not callable(function):
        raise UserError(f"{where}: is not callable")
    try:
        with on_threads(1):
            return call(function)
    except (Exception, SystemExit) as error:
        raise UserError(f"{where}: raised {told(error)}") from error


def told(error: BaseException) -> str:
    """What a user's code raised, on one line, with the file and line that raised it."""
    text = printable(f"{type(error).__name__}: {' '.join(str(error).split())}")
    if isinstance(error, SyntaxError):  # its text ends with the place
        return text
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(("<", _PACKAGE, _IMPORTLIB))
    ]
    users = [frame for frame in frames if not frame.filename.startswith(_INSTALLED)] or frames
    place = f" ({printable(users[-1].filename)}, line {users[-1].lineno})" if users else ""
    return text + place


@contextmanager
def on_threads(count: int) -> Iterator[None]:
    """Let torch compute on so many threads: by their number it divides, and so rounds, sums."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
