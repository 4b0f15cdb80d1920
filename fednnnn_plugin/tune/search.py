"""Grid searches, shared by any number of processes.

Every process does the same: the next grid point that nobody is at and that has no result, then the
next step. A trial's run folder says whether it finished. It is locked by the kernel while the trial
runs, so a point whose process was killed or interrupted is free again, and what it had done is gone
on from.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import isnan
from pathlib import Path

from filelock import FileLock, Timeout

from fednnnn_plugin.errors import RunError
from fednnnn_plugin.recipe import Recipe
from fednnnn_plugin.report.study import Plan, Step, Study
from fednnnn_plugin.tune.folder import StudyFolder
from fednnnn_plugin.tune.journal import Journal, Row
from fednnnn_plugin.tune.plan import trial_recipe
from fednnnn_plugin.tune.trial import State, begun, finished, read_curves, run_trial

Values = dict[str, float]


class Search:
    """One process's part in a study.

    Args:
        folder: the study's.
        plan: what to do.
        say: takes a line for each trial that ends here.
        jobs: processes that train side by side on this machine.
        allow_code: the user lets the recipe's own code run.

    Raises:
        UserError: the journal is damaged.
    """

    def __init__(
        self,
        folder: StudyFolder,
        plan: Plan,
        say: Callable[[str], None],
        *,
        jobs: int,
        allow_code: bool,
    ) -> None:
        self._folder = folder
        self._plan = plan
        self._say = say
        self._jobs = jobs
        self._allow_code = allow_code
        self._journal = Journal(folder.journal, plan)

    def run(self) -> tuple[Study, Values]:
        """Search every step; return what was found, and the values chosen in all steps.

        Raises:
            RunError: no trial of a step finished.
        """
        chosen: Values = {}
        for step in self._plan.steps:
            for waits in (False, True):  # at last for the points that other processes are at
                for point in step.points():
                    self._visit(step, point, chosen, waits=waits)
            best = self._tabulate().best(step)
            if best is None:
                reasons = (row["reason"] for row in self._rows() if row["state"] == "failed")
                reason = next(reasons, "all were stopped early")
                raise RunError(f"{self._folder.path}: {step.name}: no trial finished: {reason}")
            chosen |= {key: float(best[key]) for key in step.grid}
        return self._tabulate(), chosen

    def _visit(self, step: Step, point: Values, chosen: Values, *, waits: bool) -> None:
        """See that a point has a result; leave it where another process is at it."""
        folder = self._folder.trial(step, point)
        recipe = trial_recipe(self._folder.base, self._plan, step, {**chosen, **point})
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(folder.with_name(f".{folder.name}.lock"), timeout=-1 if waits else 0):
                row = self._journal.rows(step).get(tuple(point.values()))
                whole = finished(folder, recipe)
                if row and begun(folder, recipe) and (whole or row["state"] != "finished"):
                    return
                started = time.perf_counter()
                ended: tuple[State, str] = ("finished", "")
                if not whole:
                    ended = self._run(recipe, folder, step, point)
                row = self._record(folder, step, point, ended)
        except Timeout:
            return
        done, of = len(self._tabulate().trials), sum(map(len, self._plan.steps))
        self._say(f"[{done}/{of}] {self._line(row, point)}  {time.perf_counter() - started:.1f} s")

    def _run(self, recipe: Recipe, folder: Path, step: Step, point: Values) -> tuple[State, str]:
        def hopeless() -> bool:
            return self._plan.prune and self._journal.hopeless(step, point, read_curves(folder))

        return run_trial(recipe, folder, hopeless, jobs=self._jobs, allow_code=self._allow_code)

    def _record(self, folder: Path, step: Step, point: Values, ended: tuple[State, str]) -> Row:
        """Write down what a trial that ended has measured."""
        (state, reason), metric = ended, self._plan.metric
        curves = read_curves(folder)
        measured: Row = {metric: None}
        if len(curves):
            last = curves.iloc[-1]
            measured = {name: None if isnan(value) else value for name, value in last.items()}
            measured["best_round"] = int(curves["final_accuracy"].idxmax())
            measured["rounds"] = int(curves.index[-1])
        if state == "finished" and measured[metric] is None:
            state, reason = "failed", f"its {metric} is not finite"
        value = measured[metric] if state == "finished" else None
        row = {"step": step.name, "method": step.method, "state": state, "value": value, **measured}
        row |= {"folder": folder.relative_to(self._folder.path).as_posix(), "reason": reason}
        row |= point
        self._journal.record(step, point, row, curves)
        return row

    def _rows(self) -> list[Row]:
        """Return what is recorded of all trials, in the order of the grid."""
        return [
            rows[values]
            for step in self._plan.steps
            for rows in [self._journal.rows(step)]
            for point in step.points()
            if (values := tuple(point.values())) in rows
        ]

    def _tabulate(self) -> Study:
        """Bring ``trials.csv`` up to date."""
        with self._folder.locked():
            return self._folder.write_trials(self._plan, self._rows())

    def _line(self, row: Row, point: Values) -> str:
        values = ", ".join(f"{key} {value:g}" for key, value in point.items())
        how = f"{row['state']} {row['reason']}".rstrip()
        if row["state"] == "finished":
            how = f"{self._plan.metric.replace('_', ' ')} {row['value']:.4f}"
        return f"{row['step']}: {values}  {how}"
