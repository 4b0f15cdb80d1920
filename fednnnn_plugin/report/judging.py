"""By which number a run is judged: its first metric, else its accuracy, else its loss."""

from __future__ import annotations

import pandas as pd

ACCURACY = "accuracy"
_OWN = "test_metrics."


def with_values(runs: pd.DataFrame) -> pd.DataFrame:
    """Give each row the ``value`` by which its run is judged, NaN where it was not tested.

    ``metric`` says what that is, and ``lower_is_better`` how it is meant: the recipe's first
    metric; without one the accuracy, what a custom trainer measured first, or the loss,
    whichever is on record.
    """
    return pd.concat([_with_values(run) for _, run in runs.groupby("run", sort=False)])


def _with_values(run: pd.DataFrame) -> pd.DataFrame:
    named = run["metric"].iloc[0]
    own = {name: name.removeprefix(_OWN) for name in run if name.startswith(_OWN)}
    of_recipe = {f"{_OWN}{named}": named} if named else {}
    columns = {**of_recipe, "test_acc": ACCURACY, **own, "test_loss": "loss"}
    there = [name for name in columns if name in run and run[name].notna().any()]
    column = there[0] if there else "test_acc"
    lower = column == "test_loss" or (column in of_recipe and bool(run["lower_is_better"].iloc[0]))
    return run.assign(value=run[column], metric=columns[column], lower_is_better=lower)


def with_unit(metric: str) -> str:
    """How a table calls a metric."""
    return f"{metric} (%)" if metric == ACCURACY else metric


def scale(metric: str) -> tuple[float, int]:
    """The factor of a metric in a table, and its digits."""
    return (100.0, 2) if metric == ACCURACY else (1.0, 4)
