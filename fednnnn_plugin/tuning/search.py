"""Grid searches, shared by any number of processes: Optuna runs and keeps the trials.

Every process does the same: the next grid point that has no result and that nobody is at, then the
next step. A kernel's lock says who is at a point, so that the point of a process that was killed or
interrupted is free again; its trial is run anew.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy

import optuna
from filelock import FileLock, Timeout
from optuna.pruners import MedianPruner
from optuna.samplers import GridSampler
from optuna.trial import FrozenTrial, TrialState

from fednnnn_plugin.errors import RunError
from fednnnn_plugin.reporting.study import Step, Study, read_plan
from fednnnn_plugin.tuning.plan import trial_recipes
from fednnnn_plugin.tuning.study_folder import StudyFolder, shown_values
from fednnnn_plugin.tuning.trial import Failed, run_trial

Values = dict[str, float]

_CHOSEN = "chosen"  # what the steps before had chosen, of a trial
_STATES = {
    TrialState.COMPLETE: "finished",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}


@contextmanager
def _quiet_optuna() -> Iterator[None]:
    """Have Optuna say errors alone; its level is the program's own after."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


class _OfOneSeed(MedianPruner):
    """Compares a seed's rounds, after a third of them, with the same seed's of other trials.

    To it the ``rounds`` of each seed follow on those of the seed before.
    """

    def __init__(self, rounds: int) -> None:
        super().__init__(n_startup_trials=4)
        self._rounds = rounds

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        last = trial.last_step or 0
        before = max(last - 1, 0) // self._rounds * self._rounds
        if last - before < self._rounds // 3:
            return False
        own = copy(trial)
        own.intermediate_values = {
            number: value for number, value in trial.intermediate_values.items() if number > before
        }
        return super().prune(study, own)


class Search:
    """One process's part in a study, among ``jobs`` that train side by side on this machine.

    ``say`` takes a line for each trial that ends here.
    """

    @_quiet_optuna()
    def __init__(self, folder: StudyFolder, say: Callable[[str], None], jobs: int) -> None:
        self._folder, self._say, self._jobs = folder, say, jobs
        self._plan = read_plan(folder.path)
        self._chosen: dict[str, Values] = {}  # by the steps before each that was reached
        self._studies = {
            step.name: optuna.create_study(
                study_name=step.name,
                storage=folder.storage,
                direction="minimize" if self._plan.lowest else "maximize",
                pruner=_OfOneSeed(step.rounds),
                load_if_exists=True,
            )
            for step in self._plan.steps
        }

    @_quiet_optuna()
    def run(self) -> Study:
        """Search every step; it is a ``RunError`` where no trial of one finished."""
        chosen: Values = {}
        for step in self._plan.steps:
            self._chosen[step.name] = dict(chosen)
            for waits in (False, True):  # at last for the points that other processes are at
                for point in step.points():
                    self._visit(step, point, waits=waits)
            study = self._tabulate()
            best = study.chosen(step)
            if not best:
                reasons = Counter(
                    trial.user_attrs["reason"] for trial in self._ended(step).values()
                )
                ((reason, _),) = reasons.most_common(1)
                raise RunError(
                    f"{self._folder.path}: {step.name}: no trial finished: {reason}; remove "
                    f"trials/{step.name} and resume, to run them again"
                )
            if (equal := study.equally_good(step)) > 1:
                self._say(f"{step.name}: {equal} trials are equally good: the first is chosen")
            chosen |= best
        return study

    def _ended(self, step: Step) -> dict[tuple[float, ...], FrozenTrial]:
        """Return each point's last trial that was not cut short, by its values.

        One that began from another choice of the steps before than that of today counts no more.
        """
        chosen = self._chosen.get(step.name)  # None: it is not known yet
        last = {
            tuple(trial.params[key] for key in step.grid): trial
            for trial in self._studies[step.name].get_trials(deepcopy=False)
            if trial.state.is_finished()
            and "folder" in trial.user_attrs
            # Else an interrupt came when the trial had ended, before it was told so.
            and (trial.state != TrialState.FAIL or trial.user_attrs.get("reason"))
        }
        return {
            point: trial
            for point, trial in last.items()  # whose folder has its runs
            if chosen is None or trial.user_attrs.get(_CHOSEN, chosen) == chosen
        }

    def _visit(self, step: Step, point: Values, *, waits: bool) -> None:
        """See that a point has a result; leave it where another process is at it.

        A trial of which the folder of a run was removed has none.
        """
        folder, chosen = self._folder.trial(step, point), self._chosen[step.name]
        folder.parent.mkdir(parents=True, exist_ok=True)
        started = time.perf_counter()
        try:
            with FileLock(folder.with_name(f".{folder.name}.lock"), timeout=-1 if waits else 0):
                ended = self._ended(step).get(tuple(point.values()))
                runs = [*self._plan.run_folders][: ended.user_attrs["runs"] if ended else 0]
                if ended and all((folder / run).exists() for run in runs):
                    return
                recipes = trial_recipes(self._folder.load, self._plan, step, {**chosen, **point})
                study = self._studies[step.name]
                study.sampler = GridSampler({key: [value] for key, value in point.items()})

                def run(trial: optuna.Trial) -> float:
                    trial.set_user_attr(_CHOSEN, chosen)
                    how = self._folder, self._plan, step, folder, recipes, self._jobs
                    return run_trial(*how, trial)

                study.optimize(run, n_trials=1, catch=(Failed,))
                line = self._line(step, point, self._ended(step)[tuple(point.values())])
        except Timeout:
            return
        done, of = len(self._tabulate().trials), sum(map(len, self._plan.steps))
        self._say(f"[{done}/{of}] {line}  {time.perf_counter() - started:.1f} s")

    def _tabulate(self) -> Study:
        """Bring ``trials.csv`` up to date."""
        with self._folder.locked():
            rows = [
                {
                    "step": step.name,
                    "method": step.method,
                    "state": _STATES[trial.state],
                    "value": trial.value if trial.state == TrialState.COMPLETE else None,
                    **trial.user_attrs,
                    **trial.params,
                }
                for step in self._plan.steps
                for trial in self._ended(step).values()
            ]
            return self._folder.write_trials(self._plan, rows)

    def _line(self, step: Step, point: Values, trial: FrozenTrial) -> str:
        how = f"{_STATES[trial.state]} {trial.user_attrs.get('reason', '')}".rstrip()
        if trial.state == TrialState.COMPLETE:
            how = f"{self._plan.metric.replace('_', ' ')} {trial.value:.4f}"
        return f"{step.name}: {shown_values(point)}  {how}"
