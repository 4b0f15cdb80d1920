"""One trial: a run of one grid point, whose run folder says whether it finished."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial, reduce
from pathlib import Path

import optuna
import pandas as pd

from fednnnn_plugin.assembly.federation import run_federation
from fednnnn_plugin.assembly.inputs import recipe_inputs
from fednnnn_plugin.errors import RunError, StartError, UserError, in_words
from fednnnn_plugin.files import write_atomically
from fednnnn_plugin.followers.follower import Follower
from fednnnn_plugin.processes.ranks import Ranks
from fednnnn_plugin.quantities import RoundRecord
from fednnnn_plugin.recipe import Recipe, dump_recipe, load_recipe
from fednnnn_plugin.reporting.study import Plan
from fednnnn_plugin.run_folder.folder import Mode, RunFolder
from fednnnn_plugin.run_folder.records import Summary


def rounds_done(folder: Path, recipe: Recipe) -> int | None:
    """Return how many rounds this recipe's finished run had: 0 of one cut short, None of none."""
    run = RunFolder(folder)
    if not run.recipe.is_file() or run.recipe.read_bytes() != dump_recipe(recipe).encode():
        return None
    return Summary.rounds_in(run.summary)


def run_trial(
    recipe: Recipe, folder: Path, hopeless: Callable[[], bool], jobs: int, *, allow_code: bool
) -> tuple[str, str]:
    """Run a trial, or the rest of one that was cut short; other runs in its folder are refused.

    ``hopeless`` tells after each round that was tested, but the last, whether to end it; ``jobs``
    trials share this machine's cores and GPU. Returns the trial's state, and the reason of a
    failure.
    """
    ranks = Ranks()
    ranks.core_sharers = jobs
    mode: Mode = "resume" if RunFolder(folder).recipe.exists() else "new"
    pruner = _Pruner(hopeless, recipe.train_args.comm_round)
    try:
        load = partial(recipe_inputs, recipe, ranks, allow_code=allow_code)
        run_federation(recipe, load, folder, mode, ranks=ranks, followers=[pruner])
    except optuna.TrialPruned:
        return "pruned", ""
    except (RunError, StartError) as error:
        if mode == "new" and not folder.exists():  # a run that failed is there until it is removed
            folder.mkdir(parents=True)
            write_atomically(RunFolder(folder).recipe, dump_recipe(recipe).encode())
        return "failed", str(error)
    if Summary.rounds_in(RunFolder(folder).summary) > recipe.train_args.comm_round:
        raise UserError(f"--study: {folder}: it holds a longer run than the study's: move it away")
    return "finished", ""


# A search replaces no trial: one whose folder is gone is run again.
_AGAIN = {
    f"replace {what} with --overwrite": f"remove {what} to run it again"
    for what in ("it", "the run")
}


def check_trial(folder: Path, *, allow_code: bool) -> None:
    """Refuse data and code of the user's that are not those that a trial ran with."""
    if (stored := RunFolder(folder).recipe).is_file():
        recipe, ranks = load_recipe(stored, allow_code=allow_code), Ranks()
        load = partial(recipe_inputs, recipe, ranks, allow_code=allow_code)
        with in_words(_AGAIN):
            run_federation(recipe, load, folder, "resume", ranks=ranks, only_check=True)


class _Pruner(Follower):
    """Ends a trial that is hopeless."""

    def __init__(self, hopeless: Callable[[], bool], rounds: int) -> None:
        self._hopeless, self._rounds = hopeless, rounds

    def round_done(self, record: RoundRecord) -> None:
        values = (record.test_acc, record.test_loss, record.test_metrics)
        tested = any(value is not None for value in values)
        if tested and record.round < self._rounds and self._hopeless():
            raise optuna.TrialPruned


def read_curves(runs: Sequence[Path], plan: Plan) -> pd.DataFrame:
    """Read what the plan may judge by after each round that was tested, by the round's number.

    Of several runs it is the mean, for the rounds that all have which began; NaN where one of them
    has no value.
    """
    begun = [curves for run in runs if len(curves := _curves(run, plan))]
    if not begun:
        return _curves(runs[0], plan)
    rounds = reduce(pd.Index.intersection, [curves.index for curves in begun])
    return sum(begun[1:], begun[0]).loc[rounds] / len(begun)


def _curves(folder: Path, plan: Plan) -> pd.DataFrame:
    path = RunFolder(folder).metrics
    columns = {"round": int, "test_acc": float, "test_loss": float}
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        records = [json.loads(line) for line in lines]
        rounds = pd.DataFrame(records, columns=list(columns)).astype(columns)
        own = [(record.get("test_metrics") or {}).get(plan.measure) for record in records]
        rounds["measure"] = pd.Series(own, dtype=float)
    except (ValueError, TypeError, AttributeError):
        raise UserError(f"--study: {path}: damaged: remove its folder to run it anew") from None
    has_value = rounds[["test_acc", "test_loss", "measure"]].notna().any(axis=1)
    # The last round is always tested: without a value the run has diverged.
    tested = rounds[has_value | (rounds["round"] == rounds["round"].max())].set_index("round")
    accuracy, loss = tested["test_acc"], tested["test_loss"]
    best = accuracy.cummax().ffill()
    curves = {"best_accuracy": best, "final_accuracy": accuracy, "final_loss": loss}
    if plan.measure is not None:
        measure = tested["measure"]
        best = measure.cummin() if plan.lower_is_better else measure.cummax()
        curves["best_metric"] = best.ffill()  # a metric may be NaN in a round
        curves["final_metric"] = measure
    return pd.DataFrame(curves)
