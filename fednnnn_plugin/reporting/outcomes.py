"""What runs came to: a line a run, its mean over seeds, and the rounds to a value."""

from __future__ import annotations

import math

import pandas as pd

from fednnnn_plugin.errors import UserError, check_known
from fednnnn_plugin.reporting.arguments import TARGET
from fednnnn_plugin.reporting.conditions import LINE
from fednnnn_plugin.reporting.runs import SECONDS, own_metrics

ACCURACY, WORST_10 = "accuracy", "worst_10"
#: Columns of accuracies in [0, 1]. A custom metric is in its own unit, whatever it is called.
SHARES = ("test_acc", "client_acc.worst_10", "class_acc.worst")


def outcomes(
    runs: pd.DataFrame, metric: str | None = None, target: float | None = None
) -> pd.DataFrame:
    """A line a run, arranged: what identifies it, its ``best`` and ``final`` value, ...

    ``metric`` says what the values are, or is given, and ``column`` where they stand; those of
    ``SHARES`` are in [0, 1]. A value is NaN where none was measured. ``final`` is of the last
    tested round; ``tests`` is how many rounds have a value; ``seconds`` are the median of a round,
    ``minutes`` the sum of all rounds; ``reached`` is the first round as good as the ``target``.
    """
    runs = with_values(runs, metric)
    heads = runs.drop_duplicates("run").set_index("run", drop=False)
    values = runs.groupby("run")["value"]
    best = values.min().where(heads["lower_is_better"], values.max())
    heads = heads.assign(best=best, final=final_values(runs), tests=values.count())
    seconds = runs[SECONDS].sum(axis=1).groupby(runs["run"]).agg(["median", "sum"])
    seconds = seconds[seconds["sum"] > 0.0]  # a custom loop does not measure them
    heads = heads.assign(seconds=seconds["median"], minutes=seconds["sum"] / 60.0)
    heads = heads.assign(rounds=runs.groupby("run")["round"].max())
    if target is None:
        return heads
    if heads["column"].isin(SHARES).all() and not 0.0 < target <= 1.0:
        raise UserError(TARGET, f"{target:g}: an accuracy must be above 0 and at most 1")
    there = (runs["value"] <= target).where(runs["lower_is_better"], runs["value"] >= target)
    return heads.assign(reached=runs[there].groupby("run")["round"].min().astype(float))


def averaged(every: pd.DataFrame) -> pd.DataFrame:
    """One row for each line of ``outcomes``: means and sample standard deviations over seeds."""
    every = every.assign(untested=every["rounds"] - every["tests"])
    return every.groupby(LINE, sort=False).agg(
        method=("method", lambda of: ", ".join(of.unique())), seeds=("run", "size"),
        rounds=("rounds", "min"), most_rounds=("rounds", "max"), untested=("untested", "max"),
        stopped=("stopped", "count"), fewest_tests=("tests", "min"), most_tests=("tests", "max"),
        best=("best", "mean"), best_sd=("best", "std"), best_seeds=("best", "count"),
        final=("final", "mean"), final_sd=("final", "std"), final_seeds=("final", "count"),
        seconds=("seconds", "mean"), minutes=("minutes", "mean"), metric=("metric", "first"),
        column=("column", "first"), lower_is_better=("lower_is_better", "first"),
    ).reset_index()  # fmt: skip


def reaching(every: pd.DataFrame) -> pd.DataFrame:
    """For each line of ``outcomes`` its ``seeds``, how many ``reached`` the target, and when.

    ``median`` is over all seeds, of which one that did not is later than all that did: NaN unless
    more than half did.
    """
    every = every.assign(tested=every["best"].notna(), late=every["reached"].fillna(math.inf))
    numbers = every.groupby(LINE, sort=False).agg(
        seeds=("run", "size"), reached=("reached", "count"), tested=("tested", "any"),
        median=("late", "median"),
    ).reset_index()  # fmt: skip
    return numbers.assign(median=numbers["median"].where(numbers["median"] < math.inf))


def with_values(runs: pd.DataFrame, metric: str | None = None) -> pd.DataFrame:
    """Give each row of arranged runs the ``value`` by which its line is judged, NaN without one.

    ``metric`` says what that is, ``column`` where it stands, and ``lower_is_better`` how it is
    meant: the recipe's first metric; without one the accuracy, what a custom trainer measured
    first, its losses last, or the loss, whichever is on record. Of what ends in "loss" lower is
    better, unless the recipe says otherwise. It is the same for all seeds of a line, so that a
    mean is of one quantity: a seed that has no value of it has none. A ``metric`` that is given
    judges all lines.
    """
    if metric is None:
        lines = [_with_values(line) for _, line in runs.groupby(LINE, sort=False)]
        return pd.concat(lines).copy()  # in one piece, as read_folders
    firsts = [str(name) for name in runs["metric"].dropna().unique()]
    columns = dict.fromkeys(firsts) | {ACCURACY: "test_acc", "loss": "test_loss"}
    columns |= {name: f"test_metrics.{name}" for name in firsts}
    columns |= {WORST_10: "client_acc.worst_10"}
    check_known(TARGET, metric, [name for name, of in columns.items() if of in runs])
    declared = runs["metric"] == metric
    lower = runs["lower_is_better"][declared].any() if declared.any() else _is_loss(metric)
    judged = {"metric": metric, "column": columns[metric], "lower_is_better": bool(lower)}
    return runs.assign(value=runs[columns[metric]], **judged)


def _with_values(line: pd.DataFrame) -> pd.DataFrame:
    named = line["metric"].iloc[0]
    of_recipe = {f"test_metrics.{named}": named} if named else {}
    own = sorted(own_metrics(line).items(), key=lambda item: _is_loss(item[1]))
    columns = {**of_recipe, "test_acc": ACCURACY, **dict(own), "test_loss": "loss"}
    there = [name for name in columns if name in line and line[name].notna().any()]
    column = there[0] if there else "test_acc"
    lower = line["lower_is_better"].any() if column in of_recipe else _is_loss(columns[column])
    judged = {"metric": columns[column], "column": column, "lower_is_better": bool(lower)}
    return line.assign(value=line[column], **judged)


def _is_loss(metric: str) -> bool:
    return metric.endswith("loss") and not metric.startswith("neg_")


def final_values(runs: pd.DataFrame, column: str = "value") -> pd.Series[float]:
    """By run, the value of the last round that was tested; NaN where that is not finite.

    A round was tested if its record says so, or has a number of a test.
    """
    numbers = runs.columns.intersection(["test_acc", "test_loss", *own_metrics(runs)])
    tested = runs["tested"].fillna(value=False).astype(bool) | runs[numbers].notna().any(axis=1)
    return runs[tested].drop_duplicates("run", keep="last").set_index("run")[column]
