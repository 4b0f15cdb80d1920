"""Grid searches, shared by any number of processes.

Every process does the same: the next grid point that has no result and that nobody is at, then the
next step. A trial's run folder says whether it finished. The kernel locks it while the trial runs,
so a point whose process was killed or interrupted is free again, and its run is gone on with.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from math import isnan
from pathlib import Path

import pandas as pd
from filelock import FileLock, Timeout

from fednnnn_plugin.errors import RunError
from fednnnn_plugin.recipe import Recipe
from fednnnn_plugin.reporting.study import Step, Study, read_plan
from fednnnn_plugin.tuning.journal import Journal, Row
from fednnnn_plugin.tuning.plan import trial_recipes
from fednnnn_plugin.tuning.study_folder import StudyFolder, shown_values
from fednnnn_plugin.tuning.trial import read_curves, rounds_done, run_trial

Values = dict[str, float]


class Search:
    """One process's part in a study, among ``jobs`` that train side by side on this machine.

    ``say`` takes a line for each trial that ends here.
    """

    def __init__(self, folder: StudyFolder, say: Callable[[str], None], jobs: int) -> None:
        self._folder, self._say, self._jobs = folder, say, jobs
        self._plan = read_plan(folder.path)
        self._journal = Journal(folder.journal, self._plan)

    def run(self) -> Study:
        """Search every step; it is a ``RunError`` where no trial of one finished."""
        chosen: Values = {}
        load, plan = self._folder.load, self._plan
        for step in plan.steps:
            recipes = [trial_recipes(load, plan, step, {**chosen, **p}) for p in step.points()]
            for waits in (False, True):  # at last for the points that other processes are at
                for point, of_runs in zip(step.points(), recipes, strict=True):
                    self._visit(step, point, of_runs, waits=waits)
            study = self._tabulate()
            best = study.chosen(step)
            if not best:
                reasons = Counter(row["reason"] for row in self._journal.rows(step).values())
                ((reason, _),) = reasons.most_common(1)
                raise RunError(
                    f"{self._folder.path}: {step.name}: no trial finished: {reason}; remove "
                    f"trials/{step.name} and --resume runs them again"
                )
            chosen |= best
        return study

    def _visit(
        self, step: Step, point: Values, recipes: Mapping[str, Recipe], *, waits: bool
    ) -> None:
        """See that a point has a result; leave it where another process is at it."""
        folder = self._folder.trial(step, point)
        runs = {folder / name: recipe for name, recipe in recipes.items()}
        folder.parent.mkdir(parents=True, exist_ok=True)
        started = time.perf_counter()
        try:
            with FileLock(folder.with_name(f".{folder.name}.lock"), timeout=-1 if waits else 0):
                row = self._journal.rows(step).get(tuple(point.values()))
                rounds = [rounds_done(run, recipe) for run, recipe in runs.items()]
                rest = [number for number in rounds if number != step.rounds]
                # A failed trial is a result, unless the folder of the run that failed was removed.
                if row and (not rest or (rest[0] is not None and row["state"] != "finished")):
                    return
                row = self._record(folder, list(runs), step, point, *self._run(runs, step, point))
        except Timeout:
            return
        done, of = len(self._tabulate().trials), sum(map(len, self._plan.steps))
        self._say(f"[{done}/{of}] {self._line(row, point)}  {time.perf_counter() - started:.1f} s")

    def _run(self, runs: Mapping[Path, Recipe], step: Step, point: Values) -> tuple[str, str]:
        """Run what of a trial is not finished, until a run fails or is stopped early."""
        code = self._folder.allow_code
        for run, recipe in runs.items():
            if rounds_done(run, recipe) == step.rounds:
                continue
            hopeless = partial(self._hopeless, run, step, point)
            state, reason = run_trial(recipe, run, hopeless, self._jobs, allow_code=code)
            if state != "finished":
                return state, reason
        return "finished", ""

    def _hopeless(self, run: Path, step: Step, point: Values) -> bool:
        plan = self._plan
        return plan.prune and self._journal.hopeless(step, point, read_curves([run], plan))

    def _record(
        self, folder: Path, runs: list[Path], step: Step, point: Values, state: str, reason: str
    ) -> Row:
        """Write down what a trial that ended has measured."""
        metric = self._plan.metric
        curves = read_curves(runs, self._plan)
        row: Row = {"step": step.name, "method": step.method, metric: None, **point}
        if len(curves):
            row |= {name: None if isnan(last) else last for name, last in curves.iloc[-1].items()}
            signed = self._signed(curves).dropna()
            row["best_round"] = int(signed.idxmax()) if len(signed) else None
            row["rounds"] = int(curves.index[-1])
        if state == "finished" and row[metric] is None:
            state, reason = "failed", f"its {metric} is not finite"
        row |= {"state": state, "value": row[metric] if state == "finished" else None}
        row |= {"reason": reason, "folder": folder.relative_to(self._folder.path).as_posix()}
        self._journal.record(step, point, row, curves)
        return row

    def _signed(self, curves: pd.DataFrame) -> pd.Series[float]:
        """What is the higher the better after each round."""
        if self._plan.of_measure:
            return curves["final_metric"] * (-1.0 if self._plan.lower_is_better else 1.0)
        of_classes = curves["final_accuracy"].notna().any()
        return curves["final_accuracy"] if of_classes else -curves["final_loss"]

    def _tabulate(self) -> Study:
        """Bring ``trials.csv`` up to date."""
        with self._folder.locked():
            rows = [row for step in self._plan.steps for row in self._journal.rows(step).values()]
            return self._folder.write_trials(self._plan, rows)

    def _line(self, row: Row, point: Values) -> str:
        how = f"{row['state']} {row['reason']}".rstrip()
        if row["state"] == "finished":
            how = f"{self._plan.metric.replace('_', ' ')} {row['value']:.4f}"
        return f"{row['step']}: {shown_values(point)}  {how}"
