"""Figures of the results by client and by class."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.reporting import style
from fednnnn_plugin.reporting.result_tables import results_of
from fednnnn_plugin.run_folder.results import CLASSES, CLIENTS

TENTHS = ("client_low", "client_middle", "client_high")
_NAMED = 12  # classes whose names fit below an axis


def with_tenths(runs: pd.DataFrame) -> pd.DataFrame:
    """Give each round its clients' lowest tenth, median and highest tenth of accuracy, in %.

    ``TENTHS`` are the columns, NaN where it was not measured.
    """
    found = results_of(runs, CLIENTS)
    accuracies = found.astype({"accuracy": float}).groupby(["run", "round"])["accuracy"]
    tenths = accuracies.quantile([0.1, 0.5, 0.9]).unstack() * 100.0
    tenths.columns = pd.Index(TENTHS)
    return runs.merge(tenths.reset_index(), on=["run", "round"], how="left")


def draw_distribution(runs: pd.DataFrame, ax: Axes, looks: dict[str, style.Look]) -> None:
    """Draw each line's clients after the last round, from the worst to the best."""
    for label, last in _last_results(runs, CLIENTS):
        accuracies = np.sort(last["accuracy"].dropna().to_numpy(float)) * 100.0
        places = (np.arange(len(accuracies)) + 0.5) * 100.0 / max(len(accuracies), 1)
        ax.plot(places, accuracies, label=label, **looks[label])
    ax.set(xlabel="clients from the worst to the best (%)", xlim=(0.0, 100.0))


def draw_classes(runs: pd.DataFrame, ax: Axes, looks: dict[str, style.Look]) -> None:
    """Draw each line's accuracy by class after the last round, from the rarest class on.

    Over several seeds it is the mean by the class's place, as each seed may have another order.
    """
    orders = set()
    for label, found in _last_results(runs, CLASSES):
        by = ["weight", "class"] if found["weight"].notna().all() else ["class"]
        last = found.sort_values(["run", *by], kind="stable")
        place = last.groupby("run").cumcount() + 1
        orders |= {tuple(own["name"]) for _, own in last.groupby("run")}
        mean = last.groupby(place)["accuracy"].mean() * 100.0
        ax.plot(mean.index, mean, label=label, marker="o", markersize=2.6, **looks[label])
    ax.set_xlabel("classes from the rarest to the most frequent")
    names = orders.pop() if len(orders) == 1 else ()
    if 0 < len(names) <= _NAMED:
        ax.set_xticks(range(1, len(names) + 1), map(style.shortened, names))


def _last_results(runs: pd.DataFrame, name: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """The results of each line's runs in their last round that has some."""
    found = results_of(runs, name)
    if found.empty:
        raise UserError("runs", f"none has a {name}")
    found = found.merge(runs[["run", "label"]].drop_duplicates(), on="run")
    last = found[found["round"] == found.groupby("run")["round"].transform("max")]
    for label in runs["label"].unique():
        own = last[last["label"] == label]
        if len(own):
            yield str(label), own
