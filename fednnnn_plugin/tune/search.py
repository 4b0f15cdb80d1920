"""Grid searches on Optuna, shared by any number of processes.

Every process does the same: the next grid point that nobody has, then the next step. Optuna's
journal says which points are taken; each trial's folder is locked by the kernel while it runs, so
that a point whose process died is free again, and what it had done is gone on from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import optuna
from filelock import FileLock
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from fednnnn_plugin.errors import RunError, UserError
from fednnnn_plugin.tune.plan import Plan, Step, trial_recipe
from fednnnn_plugin.tune.study import StudyFolder
from fednnnn_plugin.tune.trial import Means, Result, point_name, run_trial

_RESULT = "result"


@dataclass(frozen=True)
class Trial:
    """A grid point that needs no further work, and where its run is, relative to the study."""

    step: Step
    point: dict[str, float]
    result: Result
    folder: Path


class Search:
    """One process's part in a study.

    Args:
        folder: the study's.
        plan: what to do.
        means: how to run trials.
        say: takes a line for each trial that ends here.

    Raises:
        UserError: the journal is damaged.
    """

    def __init__(
        self, folder: StudyFolder, plan: Plan, means: Means, say: Callable[[str], None]
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._folder = folder
        self._plan = plan
        self._means = means
        self._say = say
        try:
            self._storage = JournalStorage(JournalFileBackend(str(folder.journal)))
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            raise UserError(
                f"--study: {folder.journal}: damaged: not a journal of Optuna's"
            ) from error

    def run(self) -> dict[str, float]:
        """Search every step; return the values chosen in all of them.

        Raises:
            RunError: no trial of a step finished.
        """
        chosen: dict[str, float] = {}
        for step in self._plan.steps:
            self._search(step, chosen)
            chosen |= self.best(step).point
        return chosen

    def best(self, step: Step) -> Trial:
        """Return a step's best trial; of equal ones the first of the grid.

        Raises:
            RunError: none finished.
        """
        sign = 1.0 if self._plan.metric == "final_loss" else -1.0
        trials = self.trials(step)
        ranked = [
            (sign * value, index)
            for index, trial in enumerate(trials)
            if trial.result.state == "finished"
            and (value := trial.result.value(self._plan.metric)) is not None
        ]
        if not ranked:
            reason = next((f": {t.result.reason}" for t in trials if t.result.reason), "")
            raise RunError(f"{self._folder.path}: {step.name}: no trial finished{reason}")
        return trials[min(ranked)[1]]

    def trials(self, step: Step) -> list[Trial]:
        """Return the trials that ended, in the order of the grid."""
        results = self._results(self._study(step))
        return [
            Trial(step, point, results[name], self._run_folder(step, name))
            for point in step.points()
            if (name := point_name(point)) in results
        ]

    def _study(self, step: Step) -> optuna.Study:
        pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
        if self._plan.prune:
            pruner = optuna.pruners.MedianPruner(
                n_startup_trials=4, n_warmup_steps=step.rounds // 3
            )
        return optuna.create_study(
            study_name=step.name,
            storage=self._storage,
            sampler=_sampler(step),
            pruner=pruner,
            direction="minimize" if self._plan.metric == "final_loss" else "maximize",
            load_if_exists=True,
        )

    def _search(self, step: Step, chosen: Mapping[str, float]) -> None:
        study = self._study(step)
        if _sampler(step).is_exhausted(study):
            return

        def objective(trial: optuna.Trial) -> float:
            point = {
                key: trial.suggest_float(key, min(values), max(values))
                for key, values in step.grid.items()
            }
            with _aborts_leave_the_point_open():
                result = self._evaluate(trial, step, point, chosen)
            if result.state == "pruned":
                raise optuna.TrialPruned
            value = result.value(self._plan.metric)
            if result.state == "failed" or value is None:
                raise RunError(result.reason)
            return value

        try:
            study.optimize(objective, catch=(RunError,))
        except _AbortedError as error:
            raise error.reason from None

    def _evaluate(
        self,
        trial: optuna.Trial,
        step: Step,
        point: dict[str, float],
        chosen: Mapping[str, float],
    ) -> Result:
        """Run a point's trial, unless another process has, or just now does: then wait for it."""
        name = point_name(point)
        folder = self._folder.path / self._run_folder(step, name)

        def hopeless(value: float, round_number: int) -> bool:
            trial.report(value, round_number)
            return trial.should_prune()

        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{name}.lock")):
            if known := self._results(trial.study).get(name):
                return known
            started = time.perf_counter()
            result = run_trial(
                trial_recipe(self._folder.base, self._plan, step, {**chosen, **point}),
                folder,
                metric=self._plan.metric,
                means=self._means,
                hopeless=hopeless,
            )
            trial.set_user_attr(_RESULT, {"point": name, "outcome": asdict(result)})
        self._say(self._line(step, point, result, time.perf_counter() - started))
        return result

    def _line(self, step: Step, point: Mapping[str, float], result: Result, seconds: float) -> str:
        values = ", ".join(f"{key} {value:g}" for key, value in point.items())
        value = result.value(self._plan.metric)
        figure = "" if value is None else f"  {self._plan.metric.replace('_', ' ')} {value:.4f}"
        how = "" if result.state == "finished" else f"  {result.state} {result.reason}".rstrip()
        return f"{step.name}: {values}{figure}{how}  {seconds:.1f} s"

    def _run_folder(self, step: Step, name: str) -> Path:
        return self._folder.trials.relative_to(self._folder.path) / step.name / name

    @staticmethod
    def _results(study: optuna.Study) -> dict[str, Result]:
        """Return the results by the points' names; Optuna may not yet count them as ended."""
        found = [trial.user_attrs.get(_RESULT) for trial in study.get_trials(deepcopy=False)]
        return {entry["point"]: Result(**entry["outcome"]) for entry in found if entry}


def _sampler(step: Step) -> optuna.samplers.GridSampler:
    # One order in all processes and for ever: Optuna knows a point by its place in it.
    return optuna.samplers.GridSampler({k: list(v) for k, v in step.grid.items()}, seed=0)


class _AbortedError(BaseException):
    """No result of the trial; Optuna leaves one that raises this as never ended."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(reason)
        self.reason = reason


@contextmanager
def _aborts_leave_the_point_open() -> Iterator[None]:
    """Keep a full disk or a mistake of the user's from counting as the point's result."""
    try:
        yield
    except Exception as error:
        raise _AbortedError(error) from error
