"""The figures, each on a matplotlib ``Axes``: compose them in a notebook as you like.

Every function takes what ``read_runs`` returns, and an ``Axes`` (a new one where none is given),
and returns the ``Axes``. A line is the mean over seeds, its band one sample standard deviation.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.ticker import MaxNLocator

from fednnnn_plugin.report.groups import SINGLE_CLIENT, arrange
from fednnnn_plugin.report.partition import client_counts, client_sizes, partition
from fednnnn_plugin.report.runs import CLIENT_NORMS
from fednnnn_plugin.report.search import search
from fednnnn_plugin.report.style import (
    REFERENCE_LOOK,
    STYLE,
    Look,
    accuracy_axis,
    end_labels,
    linear_axis,
    log_axis,
    looks,
    styled,
)

__all__ = [
    "STYLE",
    "accuracy",
    "accuracy_by_seconds",
    "agreement",
    "client_counts",
    "client_sizes",
    "client_spread",
    "integrated_norm",
    "loss",
    "metric",
    "norms",
    "partition",
    "search",
]
NORMS = {
    "mean_update_norm": "N, mean update",
    "mean_client_norm": "E, mean client update",
    "server_update_norm": "server move",
}
FEW_POINTS, MANY_VARIANTS, BAND_POINTS = 15, 6, 300

Named = tuple[str, float, Look]


@styled
def accuracy(
    runs: pd.DataFrame, ax: Axes, *, model: str = "evaluated", names: bool = True
) -> Axes:
    """Test accuracy in per cent by round; the axis goes by the error where it passes 95 %.

    Args:
        runs: as ``read_runs`` gives them.
        ax: where to draw.
        model: the ``evaluated`` one, or the ``served`` one.
        names: whether to name the lines at their ends.
    """
    column = "served_test_acc" if model == "served" else "test_acc"
    ends = _draw(runs, ax, column, factor=100.0)
    ax.set_ylabel(f"{_images(runs)} accuracy (%)")
    accuracy_axis(ax)
    return _finish(runs, ax, ends, names)


@styled
def accuracy_by_seconds(runs: pd.DataFrame, ax: Axes, *, names: bool = True) -> Axes:
    """Test accuracy in per cent by the time that training, aggregation and evaluation took."""
    runs = arrange(runs)
    seconds = runs[[c for c in runs if str(c).startswith("seconds.")]].sum(axis=1)
    elapsed = seconds.groupby(runs["run"]).cumsum()
    longest = float(elapsed.max())
    unit, size = next(
        (unit, size)
        for unit, size in (("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))
        if longest >= 2.0 * size or size == 1.0
    )
    ends = _draw(runs.assign(elapsed=elapsed / size), ax, "test_acc", factor=100.0, x="elapsed")
    ax.set_ylabel(f"{_images(runs)} accuracy (%)")
    accuracy_axis(ax)
    return _finish(runs, ax, ends, names, unit)


@styled
def loss(runs: pd.DataFrame, ax: Axes, *, names: bool = True) -> Axes:
    """Mean cross-entropy in nats by round."""
    ends = _draw(runs, ax, "test_loss")
    ax.set_ylabel(f"{_images(runs)} loss (nats)")
    log_axis(ax)
    return _finish(runs, ax, ends, names)


@styled
def metric(runs: pd.DataFrame, ax: Axes, name: str, *, names: bool = True) -> Axes:
    """A number that the user's own trainer measured, by round."""
    ends = _draw(runs, ax, f"test_metrics.{name}")
    ax.set_ylabel(name)
    linear_axis(ax)
    return _finish(runs, ax, ends, names)


@styled
def norms(
    runs: pd.DataFrame,
    ax: Axes,
    *,
    norm: str = "mean_update_norm",
    layer: str | None = None,
    names: bool = True,
) -> Axes:
    """An L2 norm by round: N (``mean_update_norm``), E (``mean_client_norm``), the server's move.

    Args:
        runs: as ``read_runs`` gives them.
        ax: where to draw.
        norm: which one, by its name in ``metrics.jsonl``.
        layer: a module, such as ``fc3``; the whole model where None.
        names: whether to name the lines at their ends.
    """
    ends = _draw(runs, ax, f"layers.{layer}.{norm}" if layer else norm)
    ax.set_ylabel("L2 norm")
    ax.set_title(NORMS[norm])
    log_axis(ax)
    return _finish(runs, ax, ends, names)


@styled
def agreement(runs: pd.DataFrame, ax: Axes, *, names: bool = True) -> Axes:
    """N/E by round: 1 where all clients move alike, 1/√m where their updates are orthogonal."""
    runs = arrange(runs)
    moved = runs["mean_client_norm"].where(runs["mean_client_norm"] > 0.0)
    ends = _draw(runs.assign(ratio=runs["mean_update_norm"] / moved), ax, "ratio")
    cohorts = {int(m) for m in runs.get("client_num_per_round", pd.Series()).dropna() if m > 1}
    marks = [("1: clients agree", 1.0)]
    marks += [(f"1/√{m}: orthogonal", 1.0 / math.sqrt(m)) for m in sorted(cohorts)]
    for _, value in marks:
        ax.axhline(value, **REFERENCE_LOOK.line)
    ax.set_ylabel("N/E")
    log_axis(ax)
    return _finish(runs, ax, [*ends, *((n, v, REFERENCE_LOOK) for n, v in marks)], names)


@styled
def integrated_norm(runs: pd.DataFrame, ax: Axes, *, names: bool = True) -> Axes:
    """The way that the served model has gone: the sum of its moves, by round."""
    ends = _draw(runs, ax, "integrated_norm")
    ax.set_ylabel("sum of moves (L2)")
    linear_axis(ax, from_zero=True)
    return _finish(runs, ax, ends, names)


@styled
def client_spread(runs: pd.DataFrame, ax: Axes, *, names: bool = True) -> Axes:
    """The median norm of a client's update, and the band from the smallest to the largest.

    Over several seeds: the mean of the medians, the smallest and the largest of all.
    """
    runs = _lines(runs)
    ends: list[Named] = []
    low, middle, high = CLIENT_NORMS
    for label, look in looks(runs).items():
        part = runs[runs["label"] == label].dropna(subset=list(CLIENT_NORMS))
        by_round = part.groupby("round").agg({low: "min", middle: "mean", high: "max"})
        if len(by_round):
            ax.plot(by_round.index, by_round[middle], label=label, **look.line)
            _band(ax, by_round.reset_index(), "round", low, high, look)
            ends.append((label, float(by_round[middle].iloc[-1]), look))
    ax.set_ylabel("client update (L2)")
    log_axis(ax)
    return _finish(runs, ax, ends, names)


def _lines(runs: pd.DataFrame) -> pd.DataFrame:
    """Arranged runs; of several conditions, each line's name holds its own."""
    runs = arrange(runs)
    own = runs[runs["dealt"] != SINGLE_CLIENT].drop_duplicates(["data", "condition"])
    if len(own) < 2:
        return runs
    where = runs["data"] + " " + runs["condition"]
    place = where.map({name: at for at, name in enumerate(dict.fromkeys(where))})
    nth = runs["nth"] * place.nunique() + place
    return runs.assign(
        label=runs["label"] + ", " + where, nth=nth, of=runs["of"] * place.nunique()
    )


def _draw(
    runs: pd.DataFrame, ax: Axes, column: str, *, factor: float = 1.0, x: str = "round"
) -> list[Named]:
    """A line for each label; what to name at its end.

    Rounds without a value are left out, so that a curve joins tested rounds; a deviation is drawn
    where two seeds or more have the round.
    """
    runs = _lines(runs)
    runs = runs.assign(at=runs[x], value=runs.get(column, math.nan) * factor)
    ends: list[Named] = []
    for label, look in looks(runs).items():
        part = runs[runs["label"] == label].dropna(subset=["value"])
        by_round = part.groupby("round").agg(
            at=("at", "mean"), mean=("value", "mean"), sd=("value", "std")
        )
        if not len(by_round):
            continue
        marker = {"marker": "o", "markersize": 2.6} if len(by_round) <= FEW_POINTS else {}
        ax.plot(by_round["at"], by_round["mean"], label=label, **look.line, **marker)
        edges = by_round.assign(
            low=(by_round["mean"] - by_round["sd"]).clip(lower=0.0 if factor == 1.0 else None),
            high=by_round["mean"] + by_round["sd"],
        )
        _band(ax, edges.dropna(), "at", "low", "high", look)
        ends.append((label, float(by_round["mean"].iloc[-1]), look))
    return ends


def _band(ax: Axes, edges: pd.DataFrame, x: str, low: str, high: str, look: Look) -> None:
    thin = edges.iloc[:: max(1, len(edges) // BAND_POINTS)]
    if len(thin) > 1:
        ax.fill_between(thin[x], thin[low], thin[high], color=look.color, alpha=0.16, linewidth=0)


def _finish(
    runs: pd.DataFrame, ax: Axes, ends: list[Named], names: bool, x_label: str = "round"
) -> Axes:
    ax.set_xlabel(x_label)
    farthest = max((float(line.get_xdata()[-1]) for line in ax.lines), default=1.0)
    ax.set_xlim(0.0, max(farthest, 1.0) if x_label == "round" else farthest)
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=x_label == "round"))
    if names:
        bar = _colour_bar(_lines(runs), ax, ends)
        end_labels(ax, [end for end in ends if end[0] not in bar])
    return ax


def _colour_bar(runs: pd.DataFrame, ax: Axes, ends: list[Named]) -> set[str]:
    """A bar in place of names where a method has many lines that differ in one value."""
    lines = runs[runs["label"].isin([name for name, _, _ in ends])].drop_duplicates("label")
    for method, variants in lines.groupby("method"):
        told = variants["variant"].str.partition(" ")
        if len(variants) <= MANY_VARIANTS or variants["variant"].str.contains(",").any():
            continue
        styles = {name: look for name, _, look in ends}
        colors = ListedColormap([styles[label].color for label in variants["label"]])
        bar_ax = ax.inset_axes((1.04, 0.06, 0.03, 0.8))
        mapped = ScalarMappable(BoundaryNorm(np.arange(len(variants) + 1) - 0.5, len(variants)))
        mapped.set_cmap(colors)
        every = max(1, math.ceil(len(variants) / 12))
        bar = ax.get_figure(root=True).colorbar(mapped, cax=bar_ax)
        bar.set_ticks(range(0, len(variants), every), labels=list(told[2])[::every])
        bar.ax.minorticks_off()
        bar.outline.set_visible(False)
        bar.ax.set_title(f"{method}, {told[0].iloc[0]}")
        return set(variants["label"])
    return set()


def _images(runs: pd.DataFrame) -> str:
    """What the numbers were measured on: the test set, or images held out of training."""
    held_out = runs.get("validation_fraction", pd.Series(dtype=float)).fillna(0.0) > 0.0
    return "validation" if len(held_out) and held_out.all() else "test"
