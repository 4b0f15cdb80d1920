"""Read study folders, as ``fednnnn tune`` leaves them: what was searched, and what was found."""

import itertools
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fednnnn_plugin.report.printable import printable
from fednnnn_plugin.report.settings import read_nested
from fednnnn_plugin.report.study_table import Grid, Point, Trial, read_trials

STUDY, TRIALS = "study.yaml", "trials.csv"
MAX_STEPS, MAX_KEYS, MAX_POINTS, MAX_NAME = 20, 6, 1_000, 60


@dataclass(frozen=True)
class Metric:
    """What a search judges by: its name, unit and factor for people, and which end is good."""

    name: str
    unit: str
    factor: float
    lower_is_better: bool = False

    @property
    def highest(self) -> float:
        """What no recorded value exceeds."""
        return 1e9 if self.lower_is_better else 1.0

    def text(self, value: float, digits: int | None = None) -> str:
        """A value without its unit; an accuracy with two digits, a loss with four."""
        if digits is None:
            digits = 4 if self.lower_is_better else 2
        return f"{value * self.factor:.{digits}f}".replace("-", "−")


# The images held out are of the training part: none of this is measured on test data.
METRICS = {
    "best_accuracy": Metric("best validation accuracy", "%", 100.0),
    "final_accuracy": Metric("final validation accuracy", "%", 100.0),
    "final_loss": Metric("final validation loss", "nats", 1.0, lower_is_better=True),
}


@dataclass(frozen=True, eq=False)
class Step:
    """One grid search.

    Args:
        name, method, rounds: as planned.
        grid: the values of each key, in the order given.
        trials: by grid point, whose values stand in the order of the keys.
    """

    name: str
    method: str
    rounds: int
    grid: Grid
    trials: Mapping[Point, Trial]

    def points(self) -> Iterator[Point]:
        """Every combination, the last key's values going round fastest."""
        return itertools.product(*self.grid.values())

    def values(self) -> dict[Point, float]:
        """The metric at each finished point, in the order of the grid."""
        found = {point: self.trials[point].value for point in self.points() if point in self.trials}
        return {point: value for point, value in found.items() if value is not None}

    def __len__(self) -> int:
        return math.prod(map(len, self.grid.values()))


@dataclass(frozen=True, eq=False)
class Study:
    """One search.

    Args:
        name: the recipe's, with the folder's where two studies share it.
        folder: where it lies.
        metric: what is best.
        validation: share of the training images held out; None where not recorded.
        prune: whether hopeless trials were stopped early; None where not recorded.
        steps: in the order in which they were searched.
    """

    name: str
    folder: Path
    metric: Metric
    validation: float | None
    prune: bool | None
    steps: tuple[Step, ...]

    def best(self, step: Step) -> tuple[Point, float] | None:
        """A step's best finished point and its metric; of equal ones the first of the grid."""
        sign = -1.0 if self.metric.lower_is_better else 1.0
        # max() keeps the first of equals.
        return max(step.values().items(), key=lambda item: sign * item[1], default=None)


def is_study(folder: Path) -> bool:
    """Whether a folder holds a study."""
    return (folder / STUDY).is_file()


def read_studies(paths: Sequence[Path]) -> tuple[list[Study], list[str]]:
    """Read the study folders among some paths, and those directly inside of them.

    Returns:
        The studies in the order given, and a line for each thing that cannot be used.
    """
    studies: dict[str, Study] = {}
    warnings: list[str] = []
    for folder in _study_folders(paths):
        place = os.path.realpath(folder)
        if place in studies:
            warnings.append(f"{printable(folder)}: given twice; read once")
            continue
        study, problems = read_study(folder)
        warnings += problems
        if study is not None:
            studies[place] = study
    return _distinct_names(list(studies.values())), warnings


def read_study(folder: Path) -> tuple[Study | None, list[str]]:
    """Read a study, whether it runs still or has ended.

    Returns:
        The study, None where it cannot be used; and what is wrong, one line each.
    """
    where = printable(folder / STUDY)
    stored, problems = read_nested(folder / STUDY)
    if problems:
        return None, [f"{where}: {problems[0]}"]
    try:
        metric = METRICS[str(stored["metric"])]
        entries = stored["steps"]
        if not isinstance(entries, list) or not 0 < len(entries) <= MAX_STEPS:
            raise ValueError
        plans = [_planned(entry) for entry in entries]
        if len({step for step, *_ in plans}) < len(plans):
            raise ValueError
        name = _name(stored["recipe"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return None, [f"{where}: not a study's; not used"]
    grids = {step: grid for step, _, _, grid in plans}
    trials, problems = read_trials(folder / TRIALS, grids, metric.highest)
    steps = tuple(Step(*plan, trials[plan[0]]) for plan in plans)
    prune, share = stored.get("prune"), stored.get("validation")
    study = Study(
        name,
        folder,
        metric,
        share if isinstance(share, float) and 0.0 < share < 1.0 else None,
        prune if isinstance(prune, bool) else None,
        steps,
    )
    return study, problems


_Plan = tuple[str, str, int, Grid]


def _distinct_names(studies: Sequence[Study]) -> list[Study]:
    times = Counter(study.name for study in studies)
    return [
        study
        if times[study.name] == 1
        else replace(study, name=f"{study.name} ({printable(study.folder.absolute().name)})")
        for study in studies
    ]


def _study_folders(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        try:
            if is_study(path):
                yield path
            elif path.is_dir():
                inside = (child for child in path.iterdir() if not child.name.startswith("."))
                yield from sorted(filter(is_study, inside))
        except OSError:
            continue  # Said where runs are looked for.


def _planned(entry: Any) -> _Plan:
    """A step as planned.

    Raises:
        ValueError, KeyError, TypeError, OverflowError: not a step's, or larger than any search.
    """
    stored, rounds = entry["grid"], entry["rounds"]
    if not isinstance(stored, dict) or not all(isinstance(v, list) for v in stored.values()):
        raise ValueError
    grid = {_name(key): tuple(map(_grid_value, values)) for key, values in stored.items()}
    if not 0 < len(grid) <= MAX_KEYS or not 0 < math.prod(map(len, grid.values())) <= MAX_POINTS:
        raise ValueError
    if any(len(set(values)) < len(values) for values in grid.values()):
        raise ValueError
    if not isinstance(rounds, int) or not 0 < rounds < 2**31:
        raise ValueError
    return _name(entry["name"]), _name(entry["method"]), rounds, grid


def _name(value: object) -> str:
    text = printable(value) if isinstance(value, str) else ""
    if not 0 < len(text) <= MAX_NAME:
        raise ValueError
    return text


def _grid_value(value: Any) -> float:
    number = float(value)
    if isinstance(value, bool) or not (number == 0.0 or 1e-100 < abs(number) < 1e100):
        raise ValueError
    return number
