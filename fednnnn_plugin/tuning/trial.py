"""A trial: a run with each of the plan's seeds, and what it comes to."""

from collections.abc import Mapping, Sequence
from functools import partial, reduce
from math import isnan
from pathlib import Path
from typing import Any

import optuna
import pandas as pd

from fednnnn_plugin.assembly.federation import run_federation
from fednnnn_plugin.assembly.inputs import recipe_inputs
from fednnnn_plugin.errors import OVERWRITE, RunError, StartError, options_named
from fednnnn_plugin.followers.follower import Follower
from fednnnn_plugin.processes.ranks import Ranks
from fednnnn_plugin.quantities import RoundRecord
from fednnnn_plugin.recipe import Recipe, load_recipe
from fednnnn_plugin.reporting.study import Plan, Step
from fednnnn_plugin.run_folder.folder import Mode, RunFolder
from fednnnn_plugin.tuning.options import LEARNING_RATE_STEP
from fednnnn_plugin.tuning.plan import OF_FEDAVG
from fednnnn_plugin.tuning.study_folder import StudyFolder, without

# What a round may measure, as metrics of the last one.
_MEASURED = ["final_accuracy", "final_loss", "final_metric", "worst_10"]


class Failed(RuntimeError):
    """A trial that diverged, or whose settings cannot be run."""


def run_trial(
    study: StudyFolder,
    plan: Plan,
    step: Step,
    folder: Path,
    recipes: Mapping[str, Recipe],
    jobs: int,
    trial: optuna.Trial,
) -> float:
    """Make a trial's runs by the names of their folders in ``folder``; return the plan's metric.

    A folder that is there is replaced. What several runs measured is the mean, for the rounds that
    all have which began; Optuna keeps it as the trial's attributes, and why there is no value.
    ``jobs`` trials share this machine's cores and GPU.

    Raises:
        Failed: a run diverged, or cannot begin with these settings.
        TrialPruned: the trial is hopeless.
    """
    for key, values in step.grid.items():
        trial.suggest_float(key, min(values), max(values))
    ranks, judges = Ranks(), list[_Judge]()
    ranks.core_sharers = jobs
    error: Failed | optuna.TrialPruned | None = None
    try:
        for name, recipe in recipes.items():
            judges.append(_Judge(plan, trial, recipe.train_args.comm_round, len(judges)))
            load = partial(recipe_inputs, study.located(recipe), ranks, study.objects)
            run = folder / name
            mode: Mode = "overwrite" if run.exists() else "new"
            summary = run_federation(recipe, load, run, mode, ranks=ranks, followers=[judges[-1]])
            judges[-1].stopped = summary is not None and summary.stopped is not None
    except optuna.TrialPruned as pruned:
        error = pruned
    except (RunError, StartError) as failed:
        run.mkdir(parents=True, exist_ok=True)  # as long as it is there, the trial has failed
        error = Failed(str(failed))
    measured = _last(_mean(judges), plan)
    if error is None and measured.get(plan.metric) is None:
        error = Failed(f"its {plan.metric} is not finite")
    attributes = measured | {"reason": str(error or ""), "runs": len(judges)}
    attributes["folder"] = folder.relative_to(study.path).as_posix()  # at last: it has ended
    for key, value in attributes.items():
        trial.set_user_attr(key, value)
    if error:
        raise error
    return float(measured[plan.metric])


def check_trial(study: StudyFolder, step: Step, folder: Path) -> None:
    """Refuse data and code of the user's that are not those that a step's trial ran with."""
    if (stored := RunFolder(folder).recipe).is_file():
        replaced = [*OF_FEDAVG] if step.name == LEARNING_RATE_STEP else []
        names, ranks = without(study.object_names, replaced), Ranks()
        recipe = load_recipe(stored, allow_code=study.allow_code, objects=names)
        load = partial(recipe_inputs, study.located(recipe), ranks, study.objects)
        # A search replaces no trial that has ended: one whose folder is gone is run again.
        with options_named({OVERWRITE: "the folder removed"}.get):
            run_federation(recipe, load, folder, "resume", ranks=ranks, only_check=True)


class _Judge(Follower):
    """Keeps what a plan may judge a run by; Optuna's pruner may end it, where the plan prunes.

    To Optuna the rounds of a trial's runs are one sequence, so that each is compared with the same
    round of the same seed.
    """

    def __init__(self, plan: Plan, trial: optuna.Trial, rounds: int, run: int) -> None:
        self._plan, self._trial, self._rounds, self._run = plan, trial, rounds, run
        self.stopped = False  # before its last round, as its recipe says
        self._records: list[tuple[float | None, ...]] = []

    def round_done(self, record: RoundRecord) -> None:
        own = (record.test_metrics or {}).get(self._plan.measure or "")
        worst = record.client_acc.worst_10 if record.client_acc else None
        self._records.append((record.round, record.test_acc, record.test_loss, own, worst))
        if not self._plan.prune or all(value is None for value in self._records[-1][1:]):
            return
        value = self.curves()[self._plan.metric].iloc[-1]
        if not isnan(value):
            self._trial.report(value, self._run * self._rounds + record.round)
        if record.round < self._rounds and self._trial.should_prune():
            raise optuna.TrialPruned

    def curves(self) -> pd.DataFrame:
        """Return each metric after every round that was tested, by the round's number."""
        columns = ["round", *_MEASURED]
        rounds = pd.DataFrame(self._records, columns=columns, dtype=float).set_index("round")
        # The last round is always tested: without a value the run has diverged.
        tested = rounds[rounds.notna().any(axis=1) | (rounds.index == rounds.index.max())]
        accuracy, measure = tested["final_accuracy"], tested["final_metric"]
        best = measure.cummin() if self._plan.lower_is_better else measure.cummax()
        # A metric may be NaN in a round.
        return tested.assign(best_accuracy=accuracy.cummax().ffill(), best_metric=best.ffill())


def _mean(judges: Sequence[_Judge]) -> pd.DataFrame:
    """Return the mean of the runs that began, where all have a value.

    One that was stopped keeps the last values for the rounds of the others.
    """
    runs = [judge.curves() for judge in judges]
    every = reduce(pd.Index.union, [curves.index for curves in runs], pd.Index([], dtype=float))
    begun = [
        curves.reindex(every, method="ffill") if judge.stopped else curves
        for curves, judge in zip(runs, judges, strict=True)
        if len(curves)
    ] or [*runs[:1]]
    rounds = reduce(pd.Index.intersection, [curves.index for curves in begun])
    return sum(begun[1:], begun[0]).loc[rounds] / len(begun)


def _last(curves: pd.DataFrame, plan: Plan) -> dict[str, Any]:
    """Return the values after the last round, and the best round."""
    if not len(curves):
        return {}
    if plan.metric == "worst_10":
        signed = curves["worst_10"]
    elif plan.of_measure:
        signed = curves["final_metric"] * (-1.0 if plan.lower_is_better else 1.0)
    else:
        of_classes = curves["final_accuracy"].notna().any()
        signed = curves["final_accuracy"] if of_classes else -curves["final_loss"]
    signed = signed.dropna()
    values = {name: None if isnan(last) else last for name, last in curves.iloc[-1].items()}
    return values | {
        "best_round": int(signed.idxmax()) if len(signed) else None,
        "rounds": int(curves.index[-1]),
    }
