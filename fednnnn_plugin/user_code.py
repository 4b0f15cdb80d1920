"""Custom code, named ``module:name`` in a recipe: imported where the user allows it."""

import builtins
import importlib
import importlib.util
import inspect
import os
import random
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from fednnnn_plugin.errors import (
    ALLOW_CODE,
    RunError,
    UserError,
    UserErrors,
    did_you_mean,
    printable,
    said_by,
)
from fednnnn_plugin.seeds import isolated_generators

_PACKAGE = f"{Path(__file__).parent}{os.sep}"
_IMPORTLIB = str(Path(importlib.__file__).parent)
_STANDARD = f"{sysconfig.get_path('stdlib')}{os.sep}"
# Where packages are: in an environment, the user's home, a module of a cluster, or Debian's.
_PACKAGES = {"site-packages", "dist-packages"}
_ABSENT = object()
HUB = "hf:"
_OBJECT = "<object>:"  # no module has such a name


def names_code(text: object) -> bool:
    """Tell whether a name in a recipe is ``module:name``: the user's code.

    ``hf:name`` is none, but a data set of the Hugging Face hub.
    """
    if not isinstance(text, str) or text.startswith(HUB):
        return False
    module, colon, name = text.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), name))


def object_name(thing: object) -> str:
    """Name an object that a program gave in the place of a name: ``<object>:Net``."""
    if isinstance(thing, tuple | list | Mapping):
        return f"{_OBJECT}data"
    named = thing if isinstance(thing, type | FunctionType) else type(thing)
    return _OBJECT + printable(named.__name__)


def names_object(text: object) -> bool:
    """Tell whether a name in a recipe is that of an object that a program gave."""
    return isinstance(text, str) and text.startswith(_OBJECT)


def is_own(name: object) -> bool:
    """Tell whether a name in a recipe is of the user's: code, or an object."""
    return names_code(name) or names_object(name)


def find_code(where: str, name: str, given: object = None, *, allow_code: bool = False) -> object:
    """What a recipe's key stands for: the object that was ``given``, else ``module:name``.

    What a recipe names is imported where the user, not the recipe, allows it.
    """
    if given is not None:
        return given
    if names_object(name):
        raise UserError(where, f"{name}: {ONLY_GIVEN}")
    if not allow_code:
        raise refuse_code(where, name)
    return load_code(name, where)


#: Why an object's name in a recipe cannot be followed.
ONLY_GIVEN = (
    "given as an object by a Python program, which a recipe cannot bring: call fednnnn_plugin.run "
    "with it again"
)


def refuse_code(where: str, reference: str) -> UserError:
    """The error of code that a recipe's key names and the user has not allowed."""
    return UserError(
        where,
        f"{printable(reference)!r} is code that the recipe asks to run",
        f"add {ALLOW_CODE} if you trust it",
    )


def load_code(reference: str, where: str) -> object:
    """Import what ``module:name`` is; the caller has asked whether it may.

    The current directory is importable from then on, before all others, as it is for ``python
    -m``. Whatever is wrong with it is a ``UserError`` that names ``where``, the recipe's key. What
    a module draws when it is imported is the same in every run, whichever key imports it first.
    """
    said = printable(reference)
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
                where,
                f"{said}: no module {missing}",
                f"it must be installed, or in the current directory, {printable(Path.cwd())}",
            ) from error
        given = f"{said}: does not import: {exception_text(error)}"
        raise UserError(where, given) from error
    if found is _ABSENT:
        raise UserError(where, f"{said}: {name} is not there, in module {module_name}")
    return found


@contextmanager
def user_code(where: str) -> Iterator[None]:
    """Run a user's code on one thread; what it raises is a ``UserError`` at ``where``.

    Errors of ours stay as they are.
    """
    try:
        with on_threads(1):
            yield
    except (UserError, RunError):
        raise
    except (Exception, SystemExit) as error:
        raise UserError(where, f"raised {exception_text(error)}") from error


def call_code(function: object, where: str, /, *args: Any, **kwargs: Any) -> Any:
    """Call a function that `load_code` found, as `user_code`."""
    if not callable(function):
        raise UserError(where, "is not callable")
    with user_code(where):
        return function(*args, **kwargs)


def check_arguments(function: object, where: str, given: Mapping[str, object]) -> None:
    """Refuse arguments, keys of the recipe's section ``where``, that a function does not take."""
    if not given:
        return
    takes: dict[str, inspect.Parameter] = {}
    if callable(function) and not isinstance(function, torch.nn.Module):
        with suppress(ValueError, TypeError):  # some that are written in C
            takes = dict(inspect.signature(function).parameters)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values()):
        return
    by_name = [
        name
        for name, parameter in takes.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    what = printable(getattr(function, "__qualname__", type(function).__name__))
    unknown = [
        UserError(
            f"{where}.{printable(name)}",
            f"unknown key, and no argument of {what}",
            f"it takes {', '.join(by_name) or 'none'}{did_you_mean(name, by_name)}",
        )
        for name in given
        if name not in by_name
    ]
    if unknown:
        raise UserErrors(unknown)


def own_module(name: str) -> ModuleType | None:
    """Import a module of the user's; None where it is a package's, or does not import."""
    with suppress(UserError), user_code(name), isolated_generators(0, f"import {name}"):
        spec = importlib.util.find_spec(name.partition(".")[0])
        places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
        if not places or any(_is_of_package(place) for place in places if place):
            return None
        module = importlib.import_module(name)
        return None if is_installed(module) else module
    return None


def is_installed(thing: FunctionType | ModuleType | type) -> bool:
    """Tell whether a function, a class or a module is Python's, a package's or ours."""
    if isinstance(thing, FunctionType):
        return _is_of_package(thing.__code__.co_filename)
    home = thing.__name__ if isinstance(thing, ModuleType) else thing.__module__
    if home == "__main__":  # also of a script under `python -m cProfile`, whose file is Python's
        return False
    file = getattr(sys.modules.get(home), "__file__", None)
    if file is None:  # built in, or made by exec
        of_exec = home == "builtins" and isinstance(thing, type)
        made = of_exec and vars(builtins).get(thing.__name__) is not thing
        return home in sys.builtin_module_names and not made
    return _is_of_package(str(file))


def _is_of_package(file: str) -> bool:
    return file.startswith((_PACKAGE, _STANDARD)) or not _PACKAGES.isdisjoint(Path(file).parts)


def exception_text(error: BaseException) -> str:
    """What a user's code raised, on one line, with the file and line that raised it."""
    text = printable(f"{type(error).__name__}: {' '.join(said_by(error).split())}")
    if isinstance(error, SyntaxError):  # its text ends with the place
        return text
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(("<", _PACKAGE, _IMPORTLIB))
    ]
    users = [frame for frame in frames if not _is_of_package(frame.filename)] or frames
    place = f" ({printable(users[-1].filename)}, line {users[-1].lineno})" if users else ""
    return text + place


def marks_of(values: Mapping[str, object]) -> dict[str, object]:
    """Return what tells of each value whether code has changed it since, in place or not."""
    return {name: _mark(value) for name, value in values.items()}


def _mark(value: object, *, inside: bool = True) -> object:
    if isinstance(value, torch.Tensor) and not value.is_inference():
        return id(value), value._version
    if isinstance(value, torch.optim.Optimizer):
        value = value.state
    if isinstance(value, torch.Generator):
        value = value.get_state().numpy()
    elif isinstance(value, np.random.Generator):
        value = repr(value.bit_generator.state)
    elif isinstance(value, np.random.RandomState):
        value = str(value.get_state(legacy=False))
    elif isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        value = repr(value.getstate())
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if inside and isinstance(value, dict | list | tuple):
        items = [*value, *value.values()] if isinstance(value, dict) else value
        return [_mark(item, inside=False) for item in items]
    return repr(value) if isinstance(value, int | float | str) else id(value)


@contextmanager
def on_threads(count: int) -> Iterator[None]:
    """Let torch compute on so many threads: by their number it divides, and so rounds, sums."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
