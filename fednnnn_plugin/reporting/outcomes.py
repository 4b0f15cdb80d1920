"""What runs came to: a line a run, its mean over seeds, and the rounds to a value."""

from __future__ import annotations

import pandas as pd

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.reporting.arguments import check_finite
from fednnnn_plugin.reporting.conditions import LINE
from fednnnn_plugin.reporting.judging import ACCURACY, final_values, with_values
from fednnnn_plugin.reporting.runs import SECONDS


def outcomes(runs: pd.DataFrame) -> pd.DataFrame:
    """A line a run, arranged: what identifies it, its ``best`` and ``final`` value, ...

    ``metric`` says what the values are; accuracies are in [0, 1], NaN where none was measured.
    ``final`` is of the last tested round; ``tests`` is how many rounds have a value; ``seconds``
    are the median of a round.
    """
    runs = with_values(runs)
    heads = runs.drop_duplicates("run").set_index("run", drop=False)
    values = runs.groupby("run")["value"]
    lower = heads["lower_is_better"]
    best = values.max().where(~lower.fillna(False), values.min()).where(lower.notna())
    heads = heads.assign(best=best, final=final_values(runs), tests=values.count())
    seconds = runs[SECONDS].sum(axis=1).groupby(runs["run"]).median()
    seconds = seconds[seconds > 0.0]  # a custom loop does not measure them
    return heads.assign(seconds=seconds, rounds=runs.groupby("run")["round"].max())


def averaged(every: pd.DataFrame) -> pd.DataFrame:
    """One row for each line of ``outcomes``: means and sample standard deviations over seeds."""
    every = every.assign(untested=every["rounds"] - every["tests"])
    return every.groupby(LINE, sort=False).agg(
        method=("method", "first"), seeds=("run", "size"),
        rounds=("rounds", "min"), most_rounds=("rounds", "max"), untested=("untested", "max"),
        best=("best", "mean"), best_sd=("best", "std"),
        final=("final", "mean"), final_sd=("final", "std"), seconds=("seconds", "mean"),
        metric=("metric", "first"), lower=("lower_is_better", "first"),
    ).reset_index()  # fmt: skip


def reaching(runs: pd.DataFrame, every: pd.DataFrame, target: float) -> pd.DataFrame:
    """For each line its ``seeds``, how many ``reached`` a value, and after how many ``rounds``.

    ``rounds`` and their ``sd`` are NaN unless all did; ``every`` are the runs' ``outcomes``.
    """
    check_finite("--target", target)
    if {*every["metric"]} == {ACCURACY} and not 0.0 < target <= 1.0:
        raise UserError(f"--target: {target:g}: an accuracy must be above 0 and at most 1")
    runs = with_values(runs)
    lower = runs["lower_is_better"]
    there = (runs["value"] >= target).where(~lower.fillna(False), runs["value"] <= target)
    first = runs[there & lower.notna()].groupby("run")["round"].min()
    told = every.assign(first=first, tested=every["best"].notna())
    numbers = told.groupby(LINE, sort=False).agg(
        seeds=("run", "size"), reached=("first", "count"), tested=("tested", "any"),
        shortest=("rounds", "min"), rounds=("first", "mean"), sd=("first", "std"),
    ).reset_index()  # fmt: skip
    all_of_them = numbers["reached"] == numbers["seeds"]
    return numbers.assign(**{of: numbers[of].where(all_of_them) for of in ("rounds", "sd")})
