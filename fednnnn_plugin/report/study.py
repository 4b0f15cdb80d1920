"""The one reader of a study folder, as ``fednnnn tune`` leaves it: the plan, and its trials."""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

import pandas as pd
import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from fednnnn_plugin.errors import UserError

PLAN, TRIALS = "study.yaml", "trials.csv"
MAX_POINTS = 1_000

Metric = Literal["best_accuracy", "final_accuracy", "final_loss"]
METRICS: tuple[Metric, ...] = get_args(Metric)
STATES = ("finished", "pruned", "failed")
MEASURED = ("best_accuracy", "best_round", "final_accuracy", "final_loss", "rounds")
COLUMNS = ("step", "method", "state", "value", *MEASURED, "folder")

Grid = dict[str, tuple[float, ...]]


def _checked(grid: Grid) -> Grid:
    if any(len(set(values)) < len(values) for values in grid.values()):
        raise ValueError("a value is given twice")
    if not 0 < math.prod(map(len, grid.values())) <= MAX_POINTS:
        raise ValueError(f"not 1 to {MAX_POINTS} combinations")
    return grid


class Step(BaseModel):
    """One grid search.

    Attributes:
        name: of the step, and of its folder of trials.
        method: the federated optimizer that is searched for.
        rounds: of every trial.
        grid: the values of each key of ``train_args``; every combination is a trial.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: str = Field(pattern=r"^\w[\w.-]{0,99}$")
    method: str
    rounds: int = Field(ge=1)
    grid: Annotated[Grid, Field(min_length=1), AfterValidator(_checked)]

    def points(self) -> Iterator[dict[str, float]]:
        """Yield every combination, the last key's values going round fastest."""
        for values in itertools.product(*self.grid.values()):
            yield dict(zip(self.grid, values, strict=True))

    def __len__(self) -> int:
        return math.prod(map(len, self.grid.values()))


def _distinct(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    if len({step.name for step in steps}) < len(steps):
        raise ValueError("two steps of one name")
    return steps


class Plan(BaseModel):
    """A whole search (paper, appendix); ``study.yaml``.

    Attributes:
        recipe: its name.
        metric: what is best: the highest best or final accuracy, or the lowest final loss, in nats.
        validation: share of the training images that is held out; every trial is judged on it.
        prune: whether trials far behind the others are stopped early.
        steps: in the order in which they are searched.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    recipe: str
    metric: Metric
    validation: float = Field(gt=0, lt=1)
    prune: bool
    steps: Annotated[tuple[Step, ...], Field(min_length=1), AfterValidator(_distinct)]

    @property
    def keys(self) -> list[str]:
        """Every key that a step searches, in the order of the steps."""
        return list(dict.fromkeys(key for step in self.steps for key in step.grid))


@dataclass(frozen=True, eq=False)
class Study:
    """A search, whether it runs still or has ended.

    Attributes:
        folder: where it lies.
        plan: what is searched.
        trials: a row for each trial that ended, in the order of the grid: ``COLUMNS``, and a column
            for each key of the plan. ``state`` is one of ``STATES``; ``value``, the metric, is NaN
            unless the trial finished; accuracies are in [0, 1] and of the images held out; what a
            trial has not is NaN.
        warnings: what of ``trials.csv`` could not be used, one line each.
    """

    folder: Path
    plan: Plan
    trials: pd.DataFrame
    warnings: tuple[str, ...] = ()

    @property
    def step_names(self) -> list[str]:
        """The steps, in the order in which they are searched."""
        return [step.name for step in self.plan.steps]

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
    """Read a study folder.

    Raises:
        UserError: its ``study.yaml`` is missing or damaged. What is wrong with ``trials.csv`` is
            among the study's warnings instead, and costs the line that it is in.
    """
    plan = read_plan(folder)
    path = folder / TRIALS
    try:
        table = _typed(_read_table(path, plan), plan)
    except (OSError, ValueError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
        nothing = _typed(_nothing(plan), plan)
        return Study(folder, plan, nothing, (f"{path}: cannot be read: {reason}",))
    problems = _problems(table, plan)
    warnings = [f"{path}: line {row + 2}: {problems[row]}; left out" for row in sorted(problems)]
    if len(warnings) > 1:
        warnings[0] += f", and {len(warnings) - 1} more lines"
    return Study(folder, plan, _placed(table.drop(index=list(problems)), plan), tuple(warnings[:1]))


def read_plan(folder: Path) -> Plan:
    """Read a study's ``study.yaml``.

    Raises:
        UserError: it is missing or damaged.
    """
    path = folder / PLAN
    try:
        if path.exists() and not path.is_file():
            raise UserError(f"{path}: not a regular file")
        return Plan.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = "".join(f"{part}: " for part in first["loc"])
        raise UserError(f"{path}: {place}damaged, not a study's: {first['msg']}") from None
    except (ValueError, yaml.YAMLError, RecursionError):
        raise UserError(f"{path}: damaged: not YAML") from None


def _nothing(plan: Plan) -> pd.DataFrame:
    return pd.DataFrame(columns=[*COLUMNS, *plan.keys], dtype=str)


def _read_table(path: Path, plan: Plan) -> pd.DataFrame:
    """The lines of ``trials.csv`` as text; none where no trial has ended yet."""
    if not path.exists():
        return _nothing(plan)
    if not path.is_file():
        raise ValueError("not a regular file")
    table = pd.read_csv(
        path,
        dtype=str,
        keep_default_na=False,
        engine="python",
        encoding_errors="replace",
        skip_blank_lines=False,
        on_bad_lines=lambda fields: fields[:1],  # of too many fields: kept, and refused later
    )
    for name in (*COLUMNS, *plan.keys):
        if name not in table:
            raise ValueError(f"no column {name}")
    return table[[*COLUMNS, *plan.keys]].fillna("")  # of fields that a line lacks


def _typed(table: pd.DataFrame, plan: Plan) -> pd.DataFrame:
    """The same with numbers as float64, and a value only where a trial finished."""
    numbers = ["value", *MEASURED, *plan.keys]
    typed = table.assign(**{name: table[name].map(_number).astype("float64") for name in numbers})
    return typed.assign(value=typed["value"].where(typed["state"] == "finished"))


def _problems(table: pd.DataFrame, plan: Plan) -> dict[int, str]:
    """What is wrong with a line, by its row."""
    highest = math.inf if plan.metric == "final_loss" else 1.0
    place = ["step", *plan.keys]
    off_grid = table[place].merge(_points(plan), how="left", on=place)["place"].isna()
    finished = table["state"] == "finished"
    checks = {
        "not a point of the study": off_grid,
        f"its state is none of {', '.join(STATES)}": ~table["state"].isin(STATES),
        "finished without a value that can be": finished & ~table["value"].between(0, highest),
        "a second line for its point": table.duplicated(place),
    }
    found: dict[int, str] = {}
    for problem, wrong in checks.items():
        for row in table.index[wrong.to_numpy()]:
            found.setdefault(int(row), problem)
    return found


def _placed(table: pd.DataFrame, plan: Plan) -> pd.DataFrame:
    """The trials in the order of the grid, with the plan's own methods."""
    place = ["step", *plan.keys]
    trials = table.drop(columns="method").merge(_points(plan), how="inner", on=place)
    return trials.sort_values("place", ignore_index=True)[[*COLUMNS, *plan.keys]]


def _points(plan: Plan) -> pd.DataFrame:
    """Every point of the plan: its step, method, values (NaN for other steps' keys) and place."""
    rows = [
        {"step": step.name, "method": step.method, **point}
        for step in plan.steps
        for point in step.points()
    ]
    points = pd.DataFrame(rows, columns=["step", "method", *plan.keys])
    return points.assign(place=range(len(points)))


def _number(text: str | float) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
