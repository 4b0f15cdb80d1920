"""Read run folders: what was run, and what each round measured."""

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from fednnnn_plugin.report.printable import printable
from fednnnn_plugin.report.records import MAX_ROUND, Column, Records, read_records
from fednnnn_plugin.report.settings import Scalar, read_settings
from fednnnn_plugin.report.studies import is_study

METRICS, RECIPE, SUMMARY = "metrics.jsonl", "recipe.yaml", "summary.json"
MAX_PROBLEMS_SHOWN = 3
DISPLAY_NAMES = {"PaperFedAvg": "FedAvg", "PaperFedProx": "FedProx", "NormNorm": "Norm-Norm"}


@dataclass(frozen=True, eq=False)
class Run:
    """One run folder.

    Args:
        name: the folder's name, with its parent's where two runs share one.
        folder: where it lies.
        settings: ``section.key`` -> value, from ``recipe.yaml``; empty where there is none.
        records: the rounds of ``metrics.jsonl``.
        summary: the scalars of ``summary.json``; empty while the run is unfinished.
    """

    name: str
    folder: Path
    settings: Mapping[str, Scalar]
    records: Records
    summary: Mapping[str, Scalar]

    @cached_property
    def _by_key(self) -> dict[str, Scalar]:
        # FedML flattens its sections too, so a key is unique whatever section it stands in.
        return {name.rpartition(".")[2]: value for name, value in self.settings.items()}

    def setting(self, key: str) -> Scalar:
        """The recipe's value of a key, in whatever section; None where it is not set."""
        return self._by_key.get(key)

    def number(self, key: str) -> float | None:
        """The recipe's value of a key as a number; PyYAML reads ``5e-4`` as a string."""
        value = self.setting(key)
        try:
            number = math.nan if value is None or isinstance(value, bool) else float(value)
        except ValueError:
            return None
        return number if math.isfinite(number) else None

    @property
    def method(self) -> str:
        """The method as the paper writes it; the run's name where there is no recipe."""
        optimizer = self.setting("federated_optimizer")
        return self.name if optimizer is None else DISPLAY_NAMES.get(str(optimizer), str(optimizer))

    @property
    def seed(self) -> Scalar:
        return self.setting("random_seed")

    @property
    def finished(self) -> bool:
        return bool(self.summary)

    @property
    def planned_rounds(self) -> int | None:
        rounds = self.number("comm_round")
        return None if rounds is None or not 0 <= rounds <= MAX_ROUND else int(rounds)

    @property
    def last_round(self) -> int:
        return int(self.records.rounds[-1]) if self.records.rounds.size else 0

    def column(self, name: str) -> Column:
        """float64 [T]: a quantity of ``metrics.jsonl`` by round."""
        return self.records.columns[name]

    def best(self) -> tuple[float, int] | None:
        """The best test accuracy in [0, 1] and the first round that has it."""
        accuracy = self.column("test_acc")
        if np.isnan(accuracy).all():
            return None
        index = int(np.nanargmax(accuracy))
        return float(accuracy[index]), int(self.records.rounds[index])

    def final(self) -> tuple[float, int] | None:
        """The test accuracy in [0, 1] last measured, and its round."""
        tested = np.flatnonzero(~np.isnan(self.column("test_acc")))
        if not tested.size:
            return None
        return float(self.column("test_acc")[tested[-1]]), int(self.records.rounds[tested[-1]])


def read_runs(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Read run folders, or folders of run folders; nothing found there stops the rest.

    Folders of studies are passed over: their trials are no runs of the report.

    Args:
        paths: each a run folder (it has ``metrics.jsonl`` or ``recipe.yaml``) or a folder of them.

    Returns:
        The runs in the order given (inside a folder by name), and one line for each problem.
    """
    warnings: list[str] = []
    runs: list[Run] = []
    seen: set[Path] = set()
    for folder in _run_folders([Path(path) for path in paths], warnings):
        resolved = Path(os.path.realpath(folder))
        if resolved in seen:
            warnings.append(f"{printable(folder)}: given twice; read once")
            continue
        seen.add(resolved)
        runs.append(_read_run(folder, resolved, warnings))
    return _distinct_names(runs, warnings), warnings


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (METRICS, RECIPE))


def _run_folders(paths: Sequence[Path], warnings: list[str]) -> Iterator[Path]:
    for path in paths:
        where = printable(path)
        try:
            if not path.is_dir():
                warnings.append(f"{where}: " + ("not a folder" if path.exists() else "not found"))
            elif is_study(path):
                continue
            elif _is_run(path):
                yield path
            else:
                yield from _children(path, warnings)
        except OSError as error:
            warnings.append(f"{where}: cannot be read ({error.strerror})")


def _children(path: Path, warnings: list[str]) -> Iterator[Path]:
    children = sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
    found = False
    for child in children:
        if is_study(child):
            continue
        if _is_run(child):
            found = True
            yield child
        else:
            warnings.append(f"{printable(child)}: no run (it has neither {METRICS} nor {RECIPE})")
    if not found and not children:
        warnings.append(f"{printable(path)}: no run (it has neither {METRICS} nor {RECIPE})")


def _read_run(folder: Path, resolved: Path, warnings: list[str]) -> Run:
    records, problems = read_records(folder / METRICS)
    if not records.rounds.size and not problems:
        problems = ["no round recorded yet"]
    settings, recipe_problem = read_settings(folder / RECIPE)
    summary, summary_problem = read_settings(folder / SUMMARY)
    _say(warnings, folder / METRICS, problems)
    _say(warnings, folder / RECIPE, recipe_problem)
    if (folder / SUMMARY).exists():
        _say(warnings, folder / SUMMARY, summary_problem)
    run = Run(printable(resolved.name) or "run", folder, settings, records, summary)
    best, told = run.best(), summary.get("best_test_acc")
    if best and isinstance(told, float) and told != best[0]:
        _say(warnings, folder / SUMMARY, [f"best_test_acc {told} is not {METRICS}'s {best[0]}"])
    return run


def _say(warnings: list[str], path: Path, problems: Sequence[str]) -> None:
    where = printable(path)
    warnings.extend(f"{where}: {problem}" for problem in problems[:MAX_PROBLEMS_SHOWN])
    if len(problems) > MAX_PROBLEMS_SHOWN:
        warnings.append(f"{where}: and {len(problems) - MAX_PROBLEMS_SHOWN} more problems")


def _distinct_names(runs: Sequence[Run], warnings: list[str]) -> list[Run]:
    times = Counter(run.name for run in runs)
    for name in (name for name, count in times.items() if count > 1):
        folders = ", ".join(printable(run.folder) for run in runs if run.name == name)
        warnings.append(f"{times[name]} runs named {name} ({folders}); each is named by its folder")
    named = [
        run
        if times[run.name] == 1
        else replace(run, name=f"{printable(run.folder.absolute().parent.name)}/{run.name}")
        for run in runs
    ]
    times = Counter(run.name for run in named)
    return [
        run if times[run.name] == 1 else replace(run, name=printable(run.folder)) for run in named
    ]
