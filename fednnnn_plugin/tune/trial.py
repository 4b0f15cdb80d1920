"""One trial: a run of one grid point, whose run folder says whether it finished."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pandas as pd

from fednnnn_plugin.engine.folder import RunFolder
from fednnnn_plugin.engine.launch import run_recipe
from fednnnn_plugin.engine.ranks import Solo
from fednnnn_plugin.engine.records import RoundRecord
from fednnnn_plugin.engine.summary import read_rounds
from fednnnn_plugin.errors import RunError, UserError
from fednnnn_plugin.recipe import Recipe, differences, load_recipe

State = Literal["finished", "pruned", "failed"]


def begun(folder: Path, recipe: Recipe) -> bool:
    """Tell whether a run folder holds a run of this recipe, finished or not."""
    stored = RunFolder(folder).recipe
    return stored.exists() and not differences(load_recipe(stored), recipe)


def finished(folder: Path, recipe: Recipe) -> bool:
    """Tell whether a run folder holds all of this recipe's rounds."""
    rounds = read_rounds(RunFolder(folder).summary)
    return rounds == recipe.train_args.comm_round and begun(folder, recipe)


def run_trial(
    recipe: Recipe, folder: Path, hopeless: Callable[[], bool], *, jobs: int, allow_code: bool
) -> tuple[State, str]:
    """Run a trial, or the rest of one that was cut short.

    Args:
        recipe: what to run.
        folder: of the run.
        hopeless: asked after each round that was tested, tells whether to end the trial.
        jobs: trials that share this machine's cores.
        allow_code: the user lets the recipe's own code run.

    Returns:
        How it ended, and the reason of a failure.

    Raises:
        UserError: the folder holds another run.
    """

    def on_round(record: RoundRecord) -> None:
        if record.test_acc is not None and hopeless():
            raise _HopelessError

    ranks = _Sharing(jobs)
    try:
        run_recipe(recipe, folder, "resume", ranks=ranks, on_round=on_round, allow_code=allow_code)
    except _HopelessError:
        return "pruned", ""
    except RunError as error:
        return "failed", str(error)
    if not finished(folder, recipe):
        raise UserError(f"--study: {folder}: it holds a longer run than the study's: move it away")
    return "finished", ""


def read_curves(folder: Path) -> pd.DataFrame:
    """Read the metrics after each round that was tested, by the round's number.

    Raises:
        UserError: the file is damaged.
    """
    path = RunFolder(folder).metrics.path
    columns = {"round": int, "test_acc": float, "test_loss": float}
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        rounds = pd.DataFrame(map(json.loads, lines), columns=list(columns)).astype(columns)
    except (ValueError, TypeError):
        raise UserError(f"--study: {path}: damaged: remove its folder to run it anew") from None
    tested = rounds.dropna(subset="test_acc").set_index("round")
    accuracy, loss = tested["test_acc"], tested["test_loss"]
    return pd.DataFrame(
        {"best_accuracy": accuracy.cummax(), "final_accuracy": accuracy, "final_loss": loss}
    )


class _HopelessError(Exception):
    """The pruner ends the trial."""


class _Sharing(Solo):
    """A single process among several on this machine's cores."""

    def __init__(self, sharers: int) -> None:
        self.core_sharers = sharers
