"""Optuna's record of a study: the trials that ended, for its pruner, its dashboard and our table.

Which points are visited is not read from here but from the run folders; only that a trial was
stopped early or failed stands nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
from optuna.distributions import FloatDistribution
from optuna.pruners import MedianPruner
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import FrozenTrial, TrialState, create_trial

from fednnnn_plugin.engine.files import errors_named
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.report.study import Plan, Step

Row = dict[str, Any]
"""A trial's line in ``trials.csv``."""

_STATES = {
    "finished": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "failed": TrialState.FAIL,
}


class Journal:
    """Optuna's journal of a study, shared by any number of processes.

    Raises:
        UserError: from every method where the file is damaged.
    """

    def __init__(self, path: Path, plan: Plan) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._path = path
        self._metric = plan.metric
        with self._damage_named():
            storage = JournalStorage(_File(path))
            self._studies = {
                step.name: optuna.create_study(
                    study_name=step.name,
                    storage=storage,
                    direction="minimize" if plan.metric == "final_loss" else "maximize",
                    load_if_exists=True,
                )
                for step in plan.steps
            }

    def rows(self, step: Step) -> dict[tuple[float, ...], Row]:
        """Return each point's last recorded trial, by its values."""
        with self._damage_named():
            return {
                tuple(trial.params[key] for key in step.grid): trial.user_attrs["row"]
                for trial in self._studies[step.name].get_trials(deepcopy=False)
                if "row" in trial.user_attrs
            }

    def record(self, step: Step, point: dict[str, float], row: Row, curves: pd.DataFrame) -> None:
        """Add a trial that ended."""
        trial = self._trial(
            step,
            point,
            curves,
            state=_STATES[row["state"]],
            value=row["value"],
            user_attrs={"row": row},
        )
        with self._damage_named():
            self._studies[step.name].add_trial(trial)

    def hopeless(self, step: Step, point: dict[str, float], curves: pd.DataFrame) -> bool:
        """Tell whether a running trial is behind the median of those that finished."""
        pruner = MedianPruner(n_startup_trials=4, n_warmup_steps=step.rounds // 3)
        trial = self._trial(step, point, curves, state=TrialState.RUNNING)
        with self._damage_named():
            return pruner.prune(self._studies[step.name], trial)

    def _trial(
        self, step: Step, point: dict[str, float], curves: pd.DataFrame, **what: Any
    ) -> FrozenTrial:
        return create_trial(
            params=point,
            distributions={k: FloatDistribution(min(v), max(v)) for k, v in step.grid.items()},
            intermediate_values=curves[self._metric].dropna().to_dict(),
            **what,
        )

    @contextmanager
    def _damage_named(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, LookupError, TypeError, AttributeError, AssertionError) as error:
            raise UserError(
                f"--study: {self._path}: damaged: not a journal of Optuna's; move it away and go "
                "on with --resume: what has finished is kept"
            ) from error


class _File(JournalFileBackend):
    """Optuna's file, without the half line of a process that was killed while it wrote.

    Optuna would go on behind the half line, and then read neither.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()  # else Optuna waits for ever for a killed process's lock
        self._writing = JournalFileSymlinkLock(str(self._path))
        super().__init__(str(self._path), self._writing)
        self._drop_half_a_line()

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        self._drop_half_a_line()
        with errors_named(self._path):
            super().append_logs(logs)

    def _drop_half_a_line(self) -> None:
        self._writing.acquire()  # nobody else is at writing a line
        try:
            with self._path.open("rb+") as file:
                file.truncate(file.read().rfind(b"\n") + 1)
        finally:
            self._writing.release()
