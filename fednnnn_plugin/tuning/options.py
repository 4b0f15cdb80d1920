"""The values that a search takes, as the command's words or as Python's."""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError

from fednnnn_plugin.errors import Option, UserError, shown
from fednnnn_plugin.reporting.metrics import Metric
from fednnnn_plugin.reporting.study import MAX_POINTS, Grid, Plan

LEARNING_RATE_STEP = "learning-rate"  # the paper's Step 2; no method has such a name
_FORM = "must be numbers as in 0.5,0.7,1.0, or START:STOP:STEP as in 0.5:1.2:0.1"


GRID = Option("grid", "--grid")
METRIC = Option("metric", "--metric")
SEEDS = Option("seeds", "--seeds")
PAPER = Option("paper=True", "--paper")
STUDY = Option("study", "--study")
JOBS = Option("jobs", "--jobs")


class Options(NamedTuple):
    """What is asked of a plan; what is None is the default's, or the resumed study's."""

    grid: Grid | None = None
    rounds: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    validation: Annotated[float, Field(gt=0, lt=1)] | None = None
    metric: Metric | None = None
    seeds: tuple[int, ...] | None = None
    paper: bool | None = None
    prune: bool | None = None

    @property
    def planned(self) -> dict[str, object]:
        """What is given, each key's grid by itself."""
        given = self._asdict()
        given |= {f"grid {key}": values for key, values in (given.pop("grid") or {}).items()}
        return {name: value for name, value in given.items() if value is not None}


def options_of(plan: Plan) -> Options:
    """Return the options that make this plan."""
    grid = {key: values for step in plan.steps for key, values in step.grid.items()}
    given = plan.model_dump(include={"validation", "metric", "prune", "paper"})
    return Options(grid, plan.steps[0].rounds, seeds=plan.seeds or None, **given)


def checked_options(given: Mapping[str, Any]) -> Options:
    """Return what is asked for, with grids and seeds read; a ``UserError`` names what is wrong."""
    values = dict(given)
    if (grid := given["grid"]) is not None:
        if not isinstance(grid, Mapping) or not grid:
            raise UserError(GRID, shown(grid), "must be a mapping of keys to their values")
        values["grid"] = _by_key(grid.items())
    if given["seeds"] is not None:
        values["seeds"] = parse_seeds(given["seeds"])
    try:
        return TypeAdapter(Options).validate_python(values, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        why = first["msg"].replace("Input should", "must")
        raise UserError(first["loc"][0], f"{shown(first['input'])}: {why}") from None


def parse_grids(grids: Iterable[str]) -> Grid | None:
    """Read the command's ``KEY=VALUES``."""
    pairs = []
    for grid in grids:
        key, _, values = map(str.strip, grid.partition("="))
        if not key or not values:
            raise UserError(GRID, f"{grid!r}", "write KEY=VALUES, as in beta=0.5:1.2:0.1")
        pairs.append((key, values))
    return _by_key(pairs) if pairs else None


def _by_key(pairs: Iterable[tuple[object, object]]) -> Grid:
    """Return the values of each key; ``train_args.beta`` is ``beta``."""
    grid: Grid = {}
    for key, values in pairs:
        name = str(key).strip().removeprefix("train_args.")
        if name in grid:
            raise UserError(GRID, "a key is given twice", "put its values between commas")
        grid[name] = parse_grid(values, f"{GRID} {name}")
    return grid


def parse_grid(given: object, where: object = GRID) -> tuple[float, ...]:
    """Read ``START:STOP:STEP``, both ends included, values between commas, or numbers.

    Decimal, so that 0.5:1.2:0.1 ends at 1.2 and its third value is 0.7.
    """
    text = str(given)
    if isinstance(given, Iterable) and not isinstance(given, str):
        text = ",".join(map(str, given))
    try:
        numbers = list(map(_number, text.split(":" if text.count(":") == 2 else ",")))
        if ":" in text:
            start, stop, step = numbers
            if step <= 0 or stop < start:
                raise ValueError("STEP must be above 0 and STOP at least START")
            last = min((stop - start) / step, Decimal(MAX_POINTS))
            numbers = [start + step * index for index in range(int(last) + 1)]
        grid = sorted(map(float, numbers))
        if not 0 < len(grid) <= MAX_POINTS or len(set(grid)) < len(grid):
            raise ValueError(f"must be 1 to {MAX_POINTS} values, each once")
    except ValueError as error:
        value = "" if isinstance(given, list | tuple) else f"{shown(given)}: "
        raise UserError(where, f"{value}{error}") from None
    return tuple(grid)


def _number(text: str) -> Decimal:
    with suppress(InvalidOperation):
        number = Decimal(text)
        if number.is_finite() and abs(number.adjusted()) <= 300:
            return number
    raise ValueError(_FORM)


def parse_seeds(given: object) -> tuple[int, ...]:
    """Read whole numbers, or the command's ``0,1,2``; each once."""
    seeds = given
    if isinstance(given, str):
        seeds = tuple(map(int, given.split(","))) if re.fullmatch(r"\d+(,\d+)*", given) else None
    several = tuple(seeds) if isinstance(seeds, Iterable) and not isinstance(seeds, str) else ()
    whole = all(type(seed) is int and 0 <= seed < 2**32 for seed in several)
    if not whole or not 0 < len(set(several)) == len(several):
        raise UserError(
            SEEDS, shown(given), "must be whole numbers of 0 to 4294967295, each once, as in 0,1,2"
        )
    return several
