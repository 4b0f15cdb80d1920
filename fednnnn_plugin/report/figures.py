"""The figures, each on a matplotlib ``Axes``: compose them in a notebook as you like.

Every function takes what ``read_runs`` returns, and an ``Axes`` (a new one where none is given),
and returns the ``Axes``. A line is the mean over seeds, its band one sample standard deviation;
``names=False`` leaves out the names at the lines' ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import BboxTransformTo, ScaledTranslation, blended_transform_factory

from fednnnn_plugin.report.groups import SINGLE_CLIENT, arrange
from fednnnn_plugin.report.partition import client_counts, client_sizes, partition
from fednnnn_plugin.report.runs import CLIENT_NORMS, SECONDS
from fednnnn_plugin.report.search import search
from fednnnn_plugin.report.style import (
    REFERENCE_LOOK,
    STYLE,
    Look,
    accuracy_axis,
    end_labels,
    figure_of,
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

Ends = list[tuple[str, float, Look]]


@styled
def accuracy(runs: pd.DataFrame, ax: Axes, *, column: str = "test_acc", names: bool = True) -> Axes:
    """Accuracy in per cent by round; the axis goes by the error where it passes 95 %.

    ``column`` is ``test_acc`` of the evaluated model, or ``served_test_acc``.
    """
    label = f"{_images(runs)} accuracy (%)"
    return _curves(runs, ax, column, label, accuracy_axis, names, factor=100.0)


@styled
def accuracy_by_seconds(runs: pd.DataFrame, ax: Axes, *, names: bool = True) -> Axes:
    """Accuracy in per cent by the time that training, aggregation and evaluation took."""
    elapsed = runs[SECONDS].sum(axis=1).groupby(runs["run"]).cumsum()
    units = {"hours": 3600.0, "minutes": 60.0, "seconds": 1.0}
    unit = next((u for u, size in units.items() if elapsed.max() >= 2.0 * size), "seconds")
    timed = runs.assign(**{unit: elapsed / units[unit]})
    label = f"{_images(runs)} accuracy (%)"
    return _curves(timed, ax, "test_acc", label, accuracy_axis, names, factor=100.0, x=unit)


@styled
def loss(runs: pd.DataFrame, ax: Axes, *, names: bool = True) -> Axes:
    """Mean cross-entropy in nats by round."""
    return _curves(runs, ax, "test_loss", f"{_images(runs)} loss (nats)", log_axis, names)


@styled
def metric(runs: pd.DataFrame, ax: Axes, name: str, *, names: bool = True) -> Axes:
    """A number that the user's own trainer measured, by round."""
    return _curves(runs, ax, f"test_metrics.{name}", name, linear_axis, names)


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

    ``norm`` is its name in ``metrics.jsonl``; ``layer`` a module, such as ``fc3``, or None for the
    whole model.
    """
    ax.set_title(NORMS[norm])
    column = f"layers.{layer}.{norm}" if layer else norm
    return _curves(runs, ax, column, "L2 norm", log_axis, names)


@styled
def agreement(runs: pd.DataFrame, ax: Axes, *, names: bool = True) -> Axes:
    """N/E by round: 1 where all clients move alike, 1/√m where their updates are orthogonal."""
    moved = runs["mean_client_norm"].where(runs["mean_client_norm"] > 0.0)
    cohorts = runs.get("client_num_per_round", pd.Series(dtype=float)).dropna().astype(int)
    marks = {"1: clients agree": 1.0}
    marks |= {f"1/√{m}: orthogonal": 1.0 / math.sqrt(m) for m in sorted(set(cohorts)) if m > 1}
    for value in marks.values():
        ax.axhline(value, **REFERENCE_LOOK)
    ratio = runs.assign(ratio=runs["mean_update_norm"] / moved)
    references = [(name, value, REFERENCE_LOOK) for name, value in marks.items()]
    return _curves(ratio, ax, "ratio", "N/E", log_axis, names, others=references)


@styled
def integrated_norm(runs: pd.DataFrame, ax: Axes, *, names: bool = True) -> Axes:
    """The way that the served model has gone: the sum of its moves, by round."""
    return _curves(runs, ax, "integrated_norm", "sum of moves (L2)", linear_axis, names)


@styled
def client_spread(runs: pd.DataFrame, ax: Axes, *, names: bool = True) -> Axes:
    """The median norm of a client's update, and the band from the smallest to the largest.

    Over several seeds: the mean of the medians, the smallest and the largest of all.
    """
    runs = _lines(runs)
    low, middle, high = CLIENT_NORMS
    ends: Ends = []
    for label, part in runs.dropna(subset=CLIENT_NORMS).groupby("label", sort=False):
        by_round = part[["round", *CLIENT_NORMS]].groupby("round")
        shown = pd.DataFrame({"mean": by_round[middle].mean(), "low": by_round[low].min()})
        shown = shown.assign(at=shown.index, high=by_round[high].max())
        ends += _line(ax, label, looks(runs)[label], shown)
    ax.set_ylabel("client update (L2)")
    log_axis(ax)
    return _finish(runs, ax, ends, names)


def _lines(runs: pd.DataFrame) -> pd.DataFrame:
    """Arranged runs; of several conditions, each line's name holds its own."""
    runs = arrange(runs)
    where = runs["data"] + " " + runs["condition"]
    own = where[runs["dealt"] != SINGLE_CLIENT].unique()
    if len(own) < 2:
        return runs
    place = where.map({name: at for at, name in enumerate(where.unique())})
    number = int(place.max()) + 1
    label = runs["label"] + ", " + where
    return runs.assign(label=label, nth=runs["nth"] * number + place, of=runs["of"] * number)


def _curves(
    runs: pd.DataFrame,
    ax: Axes,
    column: str,
    y_label: str,
    axis: Callable[[Axes], None],
    names: bool,
    *,
    factor: float = 1.0,
    x: str = "round",
    others: Sequence[tuple[str, float, Look]] = (),
) -> Axes:
    """A line for each label.

    Rounds without a value are left out, so that a curve joins tested rounds; a deviation is drawn
    where two seeds or more have the round.
    """
    runs = _lines(runs)
    named = looks(runs)
    values = runs[["label", "round"]].assign(at=runs[x], mean=runs.get(column, math.nan) * factor)
    ends: Ends = []
    for label, part in values.dropna().groupby("label", sort=False):
        by_round = part.groupby("round")
        shown = by_round[["at", "mean"]].mean().assign(sd=by_round["mean"].std())
        least = shown["mean"].min()  # a logarithmic axis has no room for a band down to 0
        low = (shown["mean"] - shown["sd"]).clip(lower=least / 10.0 if least > 0.0 else None)
        edges = shown.assign(low=low, high=shown["mean"] + shown["sd"])
        ends += _line(ax, label, named[label], edges)
    ax.set_ylabel(y_label)
    axis(ax)
    return _finish(runs, ax, [*ends, *others], names, x)


def _line(ax: Axes, label: str, look: Look, shown: pd.DataFrame) -> Ends:
    marker = "o" if len(shown) <= FEW_POINTS else ""
    ax.plot(shown["at"], shown["mean"], label=label, marker=marker, markersize=2.6, **look)
    band = shown.dropna().iloc[:: max(1, len(shown) // BAND_POINTS)]
    if len(band) > 1:
        color = look["color"]
        ax.fill_between(band["at"], band["low"], band["high"], color=color, alpha=0.16, lw=0)
    return [(label, float(shown["mean"].iloc[-1]), look)]


def _finish(runs: pd.DataFrame, ax: Axes, ends: Ends, names: bool, x_label: str = "round") -> Axes:
    ax.set_xlabel(x_label)
    last = max((float(np.max(line.get_xdata())) for line in ax.lines), default=0.0)
    ax.set_xlim(0.0, last or 1.0)  # a loop of one's own records no seconds
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=x_label == "round"))
    if names:
        in_bars = _colour_bar(runs, ax, {end[0]: end[2] for end in ends})
        end_labels(ax, [end for end in ends if end[0] not in in_bars])
    return ax


def _colour_bar(runs: pd.DataFrame, ax: Axes, looks_of: dict[str, Look]) -> set[str]:
    """A bar in place of names for a method with many lines that differ in one value."""
    lines = runs[runs["label"].isin(looks_of)].drop_duplicates("label")
    for method, variants in lines.groupby("method"):
        if len(variants) <= MANY_VARIANTS or (variants["values"].map(len) != 1).any():
            continue
        colors = ListedColormap([looks_of[label]["color"] for label in variants["label"]])
        norm = BoundaryNorm(np.arange(len(variants) + 1) - 0.5, len(variants))
        # Right of the names of the other lines, whose width is a guess; in inches.
        beside = [len(name) for name in looks_of if name not in set(variants["label"])]
        left = 0.15 + (0.33 + 0.072 * max(beside) if beside else 0.0)
        assert isinstance(ax.transAxes, BboxTransformTo)
        inches = figure_of(ax).dpi_scale_trans + ScaledTranslation(1, 0, ax.transAxes)
        across = blended_transform_factory(inches, ax.transAxes)
        place = ax.inset_axes((left, 0.02, 0.11, 0.85), transform=across)
        bar = figure_of(ax).colorbar(ScalarMappable(norm, colors), cax=place)
        every = max(1, math.ceil(len(variants) / 12))
        told = variants["label"].str.extract(r"\((\S.*) (\S+)\)")
        bar.set_ticks(range(0, len(variants), every), labels=list(told[1])[::every])
        bar.ax.tick_params(length=0)
        bar.ax.set_title(f"{method}, {told[0].iloc[0]}")
        return set(variants["label"])
    return set()


def _images(runs: pd.DataFrame) -> str:
    """What the numbers were measured on: the test set, or images held out of training."""
    held_out = runs.get("validation_fraction", pd.Series(0.0, runs.index)).fillna(0.0) > 0.0
    return "validation" if held_out.all() else "test"
