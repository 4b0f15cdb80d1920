"""The one reader of a study folder, as ``fednnnn tune`` leaves it: the plan, and its trials."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from fednnnn_plugin.errors import UserError, reason
from fednnnn_plugin.files import read_regular
from fednnnn_plugin.reading import read_mapping
from fednnnn_plugin.reporting.metrics import Metric
from fednnnn_plugin.reporting.typed_csv import MAX_BYTES, read_typed_csv

PLAN, TRIALS = "study.yaml", "trials.csv"
MAX_POINTS = 1_000

MEASURED = ("best_accuracy", "best_round", "final_accuracy", "final_loss", "rounds")
COLUMNS = ("step", "method", "state", "value", *MEASURED, "folder")
TAKEN = {*COLUMNS, "reason"}  # what tables of trials have beside the keys

Grid = dict[str, tuple[float, ...]]


def _searchable(grid: Grid) -> Grid:
    if not 0 < (points := math.prod(map(len, grid.values()))) <= MAX_POINTS:
        raise ValueError(f"{points} combinations: must be 1 to {MAX_POINTS}")
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

    ``validation`` is the share of the training samples that is held out to judge every trial;
    with ``prune`` trials behind the median of the others are stopped early. ``measure`` is the
    recipe's first metric, which ``best_metric`` and ``final_metric`` are of. A trial is a run with
    each of the ``seeds``, or with the recipe's where there are none.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    recipe: str
    metric: Metric
    validation: float = Field(gt=0, lt=1)
    prune: bool
    paper: bool = False  # whether the steps are those of the paper's procedure
    measure: str | None = None
    lower_is_better: bool = False  # of the measure
    classes_per_client: int = 2  # of the clients on which the learning rate is chosen
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = ()
    steps: tuple[Step, ...] = Field(min_length=1)

    @property
    def of_accuracy(self) -> bool:
        """Whether an accuracy judges the trials."""
        return self.metric in ("best_accuracy", "final_accuracy", "worst_10")

    @property
    def of_measure(self) -> bool:
        """Whether the recipe's first metric judges the trials."""
        return self.metric in ("best_metric", "final_metric")

    @property
    def lowest(self) -> bool:
        """Whether the lowest value is the best."""
        return self.metric == "final_loss" or (self.of_measure and self.lower_is_better)

    @property
    def judged_on(self) -> str:
        """The samples that judge the trials."""
        if self.metric == "worst_10":
            return "each client's own part, held out"
        return f"{self.validation * 100.0:.3g} % of the training samples, held out"

    @property
    def run_folders(self) -> dict[str, int | None]:
        """The seeds of a trial's runs, by the names of their folders in the trial's."""
        return {f"seed{seed}": seed for seed in self.seeds} or {"": None}

    @property
    def keys(self) -> list[str]:
        """Every key that a step searches, in the order of the steps."""
        return list(dict.fromkeys(key for step in self.steps for key in step.grid))


@dataclass(frozen=True, eq=False)
class Study:
    """A search, whether it runs still or has ended.

    ``trials`` has a row for each trial that ended, in the order of the grid: ``COLUMNS``, and a
    column for each key of the plan. ``value``, the metric, is NaN unless the trial finished.
    """

    folder: Path
    plan: Plan
    trials: pd.DataFrame

    def of(self, step: Step) -> pd.DataFrame:
        """The trials of a step that ended."""
        return self.trials[self.trials["step"] == step.name]

    def counts(self, steps: Sequence[Step]) -> str:
        """Say how many points of these steps have a result, and of which state they are."""
        states = pd.concat(map(self.of, steps))["state"].value_counts()
        ended = ", ".join(f"{number} {state}" for state, number in states.items())
        points = sum(map(len, steps))
        return f"{states.sum()} of {points} trials have ended: {ended or 'none'}"

    def best(self, step: Step) -> pd.Series | None:
        """A step's best finished trial, of equal ones the first of the grid; None without one."""
        values = self.of(step)["value"].dropna()
        if values.empty:
            return None
        return self.trials.loc[values.idxmin() if self.plan.lowest else values.idxmax()]

    def equally_good(self, step: Step) -> int:
        """How many finished trials of a step have the best value."""
        best = self.best(step)
        return 0 if best is None else int((self.of(step)["value"] == best["value"]).sum())

    def chosen(self, step: Step) -> dict[str, float]:
        """The values of a step's best trial, by key; empty where none finished."""
        best = self.best(step)
        return {} if best is None else {key: float(best[key]) for key in step.grid}

    @property
    def choice(self) -> dict[str, float]:
        """The values that all steps chose, by key."""
        return {key: value for step in self.plan.steps for key, value in self.chosen(step).items()}


def is_study(folder: Path) -> bool:
    """Whether a folder holds a study."""
    return (folder / PLAN).is_file()


def read_study(folder: Path) -> Study:
    """Read a study folder; a ``UserError`` where its plan or its ``trials.csv`` is damaged."""
    plan, path = read_plan(folder), folder / TRIALS
    types: Any = dict.fromkeys([*COLUMNS, *plan.keys], str)
    types |= dict.fromkeys(["value", *MEASURED, *plan.keys], float)
    table = pd.DataFrame(columns=[*types]).astype(types)
    try:
        if path.exists():
            table = read_typed_csv(read_regular(path, MAX_BYTES), types)
    except (OSError, ValueError) as error:
        raise UserError(path, f"cannot be read: {reason(error)}") from None
    table["value"] = table["value"].where(table["state"] == "finished")
    place = ["step", *plan.keys]
    trials = _points(plan).merge(table.drop(columns="method"), on=place)  # in the grids' order
    if len(trials) < len(table) or table.duplicated(place).any():
        raise UserError(path, "damaged: not every line is one trial of the study")
    return Study(folder, plan, trials[[*types]])


def read_plan(folder: Path) -> Plan:
    """Read a study's ``study.yaml``; a ``UserError`` where it is missing or damaged."""
    path = folder / PLAN
    try:
        return Plan.model_validate(read_mapping(path, "a search"))
    except ValidationError as error:
        first = error.errors()[0]
        place = "".join(f"{part}: " for part in first["loc"])
        raise UserError(path, f"{place}damaged, not a study's: {first['msg']}") from None


def _points(plan: Plan) -> pd.DataFrame:
    """Every point of the plan: its step, method and values (NaN for other steps' keys)."""
    grids = [
        pd.DataFrame(step.points()).assign(step=step.name, method=step.method)
        for step in plan.steps
    ]
    return pd.concat(grids, ignore_index=True).drop_duplicates(["step", *plan.keys])
