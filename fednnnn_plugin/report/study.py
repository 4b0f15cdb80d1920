"""The one reader of a study folder, as ``fednnnn tune`` leaves it: the plan, and its trials."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from fednnnn_plugin.errors import UserError, reason
from fednnnn_plugin.reading import read_mapping

PLAN, TRIALS = "study.yaml", "trials.csv"
MAX_POINTS = 1_000

Metric = Literal["best_accuracy", "final_accuracy", "final_loss"]
STATES = ("finished", "pruned", "failed")
MEASURED = ("best_accuracy", "best_round", "final_accuracy", "final_loss", "rounds")
COLUMNS = ("step", "method", "state", "value", *MEASURED, "folder")
TAKEN = {*COLUMNS, "reason", "row", "place"}  # what tables of trials have beside the keys

Grid = dict[str, tuple[float, ...]]


def _searchable(grid: Grid) -> Grid:
    if not 0 < math.prod(map(len, grid.values())) <= MAX_POINTS:
        raise ValueError(f"not 1 to {MAX_POINTS} combinations")
    if taken := grid.keys() & TAKEN:
        raise ValueError(f"{', '.join(sorted(taken))}: tables of trials have such a column")
    return grid


class Step(BaseModel):
    """One grid search: every combination of the values of ``train_args`` keys is a trial."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: str = Field(pattern=r"^\w[\w.-]{0,99}$")
    method: str
    rounds: int = Field(ge=1)
    grid: Annotated[Grid, Field(min_length=1), AfterValidator(_searchable)]

    def points(self) -> Iterator[dict[str, float]]:
        """Yield every combination, the last key's values going round fastest."""
        for values in itertools.product(*self.grid.values()):
            yield dict(zip(self.grid, values, strict=True))

    def __len__(self) -> int:
        return math.prod(map(len, self.grid.values()))


class Plan(BaseModel):
    """A whole search (paper, appendix); ``study.yaml``.

    ``validation`` is the share of the training images that is held out to judge every trial;
    with ``prune`` trials far behind the others are stopped early.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    recipe: str
    metric: Metric
    validation: float = Field(gt=0, lt=1)
    prune: bool
    steps: tuple[Step, ...] = Field(min_length=1)

    @property
    def keys(self) -> list[str]:
        """Every key that a step searches, in the order of the steps."""
        return list(dict.fromkeys(key for step in self.steps for key in step.grid))


@dataclass(frozen=True, eq=False)
class Study:
    """A search, whether it runs still or has ended; ``warnings`` are of its ``trials.csv``.

    ``trials`` has a row for each trial that ended, in the order of the grid: ``COLUMNS``, and a
    column for each key of the plan. ``value``, the metric, is NaN unless the trial finished.
    """

    folder: Path
    plan: Plan
    trials: pd.DataFrame
    warnings: tuple[str, ...] = ()

    def of(self, step: Step) -> pd.DataFrame:
        """The trials of a step that ended."""
        return self.trials[self.trials["step"] == step.name]

    def best(self, step: Step) -> pd.Series | None:
        """A step's best finished trial, of equal ones the first of the grid; None without one."""
        values = self.of(step)["value"].dropna()
        if values.empty:
            return None
        lowest = self.plan.metric == "final_loss"
        return self.trials.loc[values.idxmin() if lowest else values.idxmax()]

    def chosen(self, step: Step) -> dict[str, float]:
        """The values of a step's best trial, by key; empty where none finished."""
        best = self.best(step)
        return {} if best is None else {key: float(best[key]) for key in step.grid}


def is_study(folder: Path) -> bool:
    """Whether a folder holds a study."""
    return (folder / PLAN).is_file()


def read_study(folder: Path) -> Study:
    """Read a study folder; what is wrong with ``trials.csv`` costs its line and is a warning."""
    plan, path = read_plan(folder), folder / TRIALS
    names = [*COLUMNS, *plan.keys]
    table, warnings = pd.DataFrame(columns=names, dtype=str), []
    how: Any = {"dtype": str, "keep_default_na": False, "skip_blank_lines": False}
    how |= {"engine": "python", "on_bad_lines": lambda fields: fields[:1]}  # kept, and no trial
    try:
        if path.exists():
            read = pd.read_csv(io.StringIO(_text(path)), **how)
            if missing := [name for name in names if name not in read]:
                raise ValueError(f"no column {', '.join(missing)}")
            table = read[names].copy()
    except (OSError, ValueError, LookupError) as error:
        warnings.append(f"{path}: cannot be read: {reason(error)}")
    numbers = ["value", *MEASURED, *plan.keys]
    # Not pd.to_numeric: it may miss the float that was written by its last bit.
    table[numbers] = table[numbers].map(_number).astype("float64")
    finished = table["state"] == "finished"
    highest = math.inf if plan.metric == "final_loss" else 1.0
    usable = table["state"].isin(STATES) & (table["value"].between(0.0, highest) | ~finished)
    # A line counts where it is a point of the plan, and the first one of that point.
    place = ["step", *plan.keys]
    trials = table.assign(row=table.index, value=table["value"].where(finished))[usable]
    trials = trials.drop(columns="method").drop_duplicates(place).merge(_points(plan), on=place)
    if lost := sorted({*table.index} - {*trials["row"]}):
        more = f", and {len(lost) - 1} more lines" * (len(lost) > 1)
        warnings.append(f"{path}: line {lost[0] + 2}: no trial of the study{more}; left out")
    trials = trials.sort_values("place", ignore_index=True)[names]
    return Study(folder, plan, trials, tuple(warnings))


def read_plan(folder: Path) -> Plan:
    """Read a study's ``study.yaml``; a ``UserError`` where it is missing or damaged."""
    path = folder / PLAN
    try:
        return Plan.model_validate(read_mapping(path, "a search"))
    except ValidationError as error:
        first = error.errors()[0]
        place = "".join(f"{part}: " for part in first["loc"])
        raise UserError(f"{path}: {place}damaged, not a study's: {first['msg']}") from None


def _number(text: str | None) -> float:
    try:
        return math.nan if text is None else float(text)
    except ValueError:
        return math.nan


def _text(path: Path) -> str:
    if path.exists() and not path.is_file():
        raise OSError("not a regular file")
    return path.read_text(encoding="utf-8", errors="replace")


def _points(plan: Plan) -> pd.DataFrame:
    """Every point of the plan: its step, method, values (NaN for other steps' keys) and place."""
    grids = [
        pd.DataFrame(step.points()).assign(step=step.name, method=step.method)
        for step in plan.steps
    ]
    points = pd.concat(grids, ignore_index=True).drop_duplicates(["step", *plan.keys])
    return points.assign(place=points.index)
