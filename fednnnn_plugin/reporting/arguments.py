"""What ``fp.report`` and ``fp.read_runs`` are given: paths, names, a number."""

from collections.abc import Iterable
from contextlib import suppress
from math import isfinite
from numbers import Real
from pathlib import Path

import pandas as pd

from fednnnn_plugin.errors import Option, UserError, shown
from fednnnn_plugin.files import checked_path

OUT = Option("out", "--out")
LAYERS = Option("layers", "--layer")
TARGET = Option("target", "--target")
FORMAT = Option("formats", "--format")
HUE = Option("hue", "--hue")


def run_paths(given: Iterable[object]) -> list[Path]:
    """The folders that are meant by paths, patterns such as ``runs/n-*``, and iterables of them.

    A path that is there, or a pattern that nothing matches, is meant itself.
    """
    found: list[Path] = []
    for each in given:
        if isinstance(each, Iterable) and not isinstance(each, str | pd.DataFrame):
            found += run_paths(each)
            continue
        path = checked_path("runs", each)
        matching: list[Path] = []
        with suppress(ValueError):  # it is no pattern either
            if not path.exists():
                matching = sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
        found += [match for match in matching if match.is_dir()] or [path]
    return found


def checked_names(what: object, given: object) -> list[str]:
    """One name or several."""
    names = [given] if isinstance(given, str) else given
    if isinstance(names, Iterable):
        names = list(names)
        if all(isinstance(name, str) for name in names):
            return names
    raise UserError(what, shown(given), "must be a name, or a list of names")


def parsed_target(given: object) -> tuple[str | None, float]:
    """A value that runs are to reach, and what is to reach it: ``worst_10=0.6``, or None."""
    name, value = "", given
    if isinstance(given, str):
        name, _, value = given.rpartition("=")
        with suppress(ValueError):
            value = float(value)
    if not isinstance(value, Real) or not isfinite(value):
        must = "must be a finite number, or NAME=NUMBER, as worst_10=0.6"
        raise UserError(TARGET, shown(given), must)
    return name.strip() or None, float(value)
