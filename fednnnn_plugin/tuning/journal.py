"""Optuna's record of a study: the trials that ended, for its pruner, its dashboard and our table.

Which points are visited is not read from here but from the run folders; only that a trial was
stopped early or failed stands nowhere else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pandas as pd
from filelock import FileLock
from optuna.distributions import FloatDistribution
from optuna.pruners import MedianPruner
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.files import errors_named
from fednnnn_plugin.reporting.study import STATES, Plan, Step

Row = dict[str, Any]
"""A trial's line in ``trials.csv``, with the reason of a failure."""

_OPTUNAS = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
_STATES = dict(zip(STATES, _OPTUNAS, strict=True))


class Journal:
    """Optuna's journal of a study, shared by any number of processes."""

    def __init__(self, path: Path, plan: Plan) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._metric = plan.metric
        self._path = path
        # Not Optuna's, which a killed process leaves behind, for others to wait for.
        lock: Any = FileLock(path.with_name(".journal.lock"))
        with lock:  # nobody else is at writing a line
            _drop_half_a_line(path)
        try:
            storage = JournalStorage(JournalFileBackend(str(path), lock))
            self._studies = {
                step.name: optuna.create_study(
                    study_name=step.name,
                    storage=storage,
                    direction="minimize" if plan.lowest else "maximize",
                    load_if_exists=True,
                )
                for step in plan.steps
            }
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise UserError(
                f"--study: {path}: damaged: not a journal of Optuna's; move it away and continue "
                "with --resume: what has finished is kept"
            ) from error

    def rows(self, step: Step) -> dict[tuple[float, ...], Row]:
        """Return each point's last recorded trial, by its values."""
        return {
            tuple(trial.params[key] for key in step.grid): trial.user_attrs["row"]
            for trial in self._studies[step.name].get_trials(deepcopy=False)
            if "row" in trial.user_attrs
        }

    def record(self, step: Step, point: dict[str, float], row: Row, curves: pd.DataFrame) -> None:
        """Add a trial that ended."""
        ended = {"state": _STATES[row["state"]], "value": row["value"], "user_attrs": {"row": row}}
        with errors_named(self._path):
            self._studies[step.name].add_trial(self._trial(step, point, curves, **ended))

    def hopeless(self, step: Step, point: dict[str, float], curves: pd.DataFrame) -> bool:
        """Tell whether a running trial is behind the median of those that finished."""
        pruner = MedianPruner(n_startup_trials=4, n_warmup_steps=step.rounds // 3)
        trial = self._trial(step, point, curves, state=TrialState.RUNNING)
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


def _drop_half_a_line(path: Path) -> None:
    """Drop what a process wrote last that was killed; Optuna would write on behind it."""
    with path.open("ab+") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
