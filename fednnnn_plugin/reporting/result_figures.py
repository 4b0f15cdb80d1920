"""Figures of the results by client and by class."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from typing_extensions import Unpack

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.reporting import scales, style
from fednnnn_plugin.reporting.curves import Lines, curves, name_lines, of_lines, titled
from fednnnn_plugin.reporting.result_tables import results_of
from fednnnn_plugin.run_folder.results import CLASSES, CLIENTS

_TENTHS = ("client_low", "client_middle", "client_high")
_NAMED = 12  # classes whose names fit below an axis


@of_lines
def client_quantiles(runs: pd.DataFrame, ax: Axes | None = None, **how: Unpack[Lines]) -> Axes:
    """Accuracy on the clients' own test parts by round, of runs with ``per_client``.

    The line is the median of the clients; the band has 80 % of them, without the lowest and the
    highest tenth. Over several seeds: the mean of the medians, the lowest and the highest of all.
    """
    low, middle, high = _TENTHS
    found, label = _with_tenths(runs), "accuracy by client (%)"
    return titled(curves(found, ax, middle, label, _per_cent, how, band=(low, high)))


@of_lines
def client_distribution(runs: pd.DataFrame, ax: Axes | None = None, **how: Unpack[Lines]) -> Axes:
    """Accuracy on the clients' own test parts after the last round, of runs with ``per_client``.

    From the worst client to the best, of all seeds together: at 10 % is the accuracy that a tenth
    of the clients does not reach.
    """
    ax, looks = style.axes(ax), style.looks(runs, how["palette"])
    for label, last in _last_results(runs, _with_accuracy(runs)):
        accuracies = np.sort(last["accuracy"].to_numpy(float)) * 100.0
        places = (np.arange(len(accuracies)) + 0.5) * 100.0 / len(accuracies)
        ax.plot(places, accuracies, label=label, **looks[label])
    ax.set(xlabel="clients from the worst to the best (%)", xlim=(0.0, 100.0))
    ax.set_ylabel("accuracy by client (%)")
    _per_cent(ax)
    name_lines(ax, looks, how)
    return ax


@of_lines
def class_accuracy(runs: pd.DataFrame, ax: Axes | None = None, **how: Unpack[Lines]) -> Axes:
    """Accuracy by class after the last round, of runs with ``per_class``.

    The rarest class, with the least ``weight`` in the clients' average, is the first; of several
    seeds it is the mean over their rarest ones.
    """
    ax, looks = style.axes(ax), style.looks(runs, how["palette"])
    orders = set()
    for label, found in _last_results(runs, results_of(runs, CLASSES)):
        by = ["weight", "class"] if found["weight"].notna().all() else ["class"]
        last = found.sort_values(["run", *by], kind="stable")
        place = last.groupby("run").cumcount() + 1
        orders |= {tuple(own["name"]) for _, own in last.groupby("run")}
        mean = last.groupby(place)["accuracy"].mean() * 100.0
        ax.plot(mean.index, mean, label=label, marker="o", markersize=2.6, **looks[label])
    ax.set(xlabel="classes from the rarest to the most frequent", ylabel="accuracy by class (%)")
    names = orders.pop() if len(orders) == 1 else ()
    if 0 < len(names) <= _NAMED:
        ax.set_xticks(range(1, len(names) + 1), map(style.shortened, names))
    _per_cent(ax)
    name_lines(ax, looks, how)
    return ax


def _per_cent(ax: Axes) -> None:
    scales.linear_axis(ax, highest=100.0)


def _with_tenths(runs: pd.DataFrame) -> pd.DataFrame:
    """Give each round its clients' lowest tenth, median and highest tenth of accuracy, in %.

    ``_TENTHS`` are the columns, NaN where it was not measured.
    """
    accuracies = _with_accuracy(runs).groupby(["run", "round"])["accuracy"]
    tenths = accuracies.quantile([0.1, 0.5, 0.9]).unstack() * 100.0
    tenths.columns = pd.Index(_TENTHS)
    return runs.merge(tenths.reset_index(), on=["run", "round"], how="left")


def _with_accuracy(runs: pd.DataFrame) -> pd.DataFrame:
    """The results by client that have an accuracy."""
    found = results_of(runs, CLIENTS).dropna(subset=["accuracy"])
    if found.empty:
        raise UserError("runs", "no client of them has an accuracy", "client_results has its loss")
    return found


def _last_results(runs: pd.DataFrame, results: pd.DataFrame) -> Iterable[tuple[str, pd.DataFrame]]:
    """Those of the results, for each line, that are of its runs' last round that has some."""
    found = results.merge(runs[["run", "label"]].drop_duplicates(), on="run")
    last = found[found["round"] == found.groupby("run")["round"].transform("max")]
    return last.groupby("label", sort=False)
