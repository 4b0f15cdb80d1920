"""By which number a line is judged: its first metric, else its accuracy, else its loss."""

from __future__ import annotations

import math

import pandas as pd

from fednnnn_plugin.reporting.conditions import LINE

ACCURACY = "accuracy"
_OWN = "test_metrics."


def with_values(runs: pd.DataFrame) -> pd.DataFrame:
    """Give each row of arranged runs the ``value`` by which its line is judged, NaN without one.

    ``metric`` says what that is, and ``lower_is_better`` how it is meant: the recipe's first
    metric; without one the accuracy, what a custom trainer measured first, or the loss,
    whichever is on record. It is the same for all seeds of a line, so that a mean is of one
    quantity: a seed that has no value of it has none. ``lower_is_better`` is NA while no seed
    of a line with a custom metric is finished.
    """
    found = pd.concat([_with_values(line) for _, line in runs.groupby(LINE, sort=False)])
    return found.astype({"lower_is_better": "boolean"}).copy()  # in one piece, as read_folders'


def _with_values(line: pd.DataFrame) -> pd.DataFrame:
    named = line["metric"].iloc[0]
    own = {name: name.removeprefix(_OWN) for name in line if name.startswith(_OWN)}
    of_recipe = {f"{_OWN}{named}": named} if named else {}
    columns = {**of_recipe, "test_acc": ACCURACY, **own, "test_loss": "loss"}
    there = [name for name in columns if name in line and line[name].notna().any()]
    column = there[0] if there else "test_acc"
    lower: bool | None = column == "test_loss"
    if column in of_recipe:
        known = line["lower_is_better"].dropna()
        lower = None if known.empty else bool(known.iloc[0])
    return line.assign(value=line[column], metric=columns[column], lower_is_better=lower)


def final_values(runs: pd.DataFrame) -> pd.Series[float]:
    """By run, the ``value`` of the last round that was tested; NaN where that is not finite.

    A round was tested if its record says so. One of an older version does not: it was if a number
    of its test is on record, or if the recipe says so: with ``frequency_of_the_test`` n, rounds 1,
    n + 1, 2n + 1, ... and the last.
    """
    numbers = [name for name in runs if name in ("test_acc", "test_loss") or name.startswith(_OWN)]
    due = (runs["round"] - 1) % runs["frequency_of_the_test"].astype(float) == 0.0
    due |= runs["round"] == pd.to_numeric(runs.get("comm_round", math.nan), errors="coerce")
    if "tested" in runs:
        due = runs["tested"].astype("boolean").fillna(due)
    tested = runs[runs[numbers].notna().any(axis=1) | due.fillna(value=False).astype(bool)]
    return tested.drop_duplicates("run", keep="last").set_index("run")["value"]


def with_unit(metric: str) -> str:
    """How a table calls a metric."""
    return f"{metric} (%)" if metric == ACCURACY else metric


def scale(metric: str) -> tuple[float, int]:
    """The factor of a metric in a table, and its digits."""
    return (100.0, 2) if metric == ACCURACY else (1.0, 4)
