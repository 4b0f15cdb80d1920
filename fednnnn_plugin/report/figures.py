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
from matplotlib.colors import BoundaryNorm, ListedColormap, to_rgba
from matplotlib.ticker import MaxNLocator

from fednnnn_plugin.report import partition as dealt
from fednnnn_plugin.report import search as searched
from fednnnn_plugin.report import style
from fednnnn_plugin.report.groups import SINGLE_CLIENT, arrange, judged, shades
from fednnnn_plugin.report.runs import CLIENT_NORMS, SECONDS

STYLE, search = style.STYLE, searched.search
client_counts, client_sizes = dealt.client_counts, dealt.client_sizes
partition = dealt.partition
NORMS = {
    "mean_update_norm": "N, mean update",
    "mean_client_norm": "E, mean client update",
    "server_update_norm": "server move",
}
FEW_POINTS, MANY_VARIANTS, BAND_POINTS = 15, 6, 300

End = tuple[str, float, style.Look]


@style.styled
def accuracy(
    runs: pd.DataFrame,
    ax: Axes,
    *,
    column: str = "test_acc",
    title: str = "",
    names: bool = True,
) -> Axes:
    """Accuracy in per cent by round; the axis goes by the error where it passes 95 %.

    ``column`` is ``test_acc`` of the evaluated model, or ``served_test_acc``.
    """
    if title:
        ax.set_title(title)
    label = f"{judged(runs)} accuracy (%)"
    return _curves(runs, ax, column, label, style.accuracy_axis, names, factor=100.0)


@style.styled
def accuracy_by_seconds(runs: pd.DataFrame, ax: Axes, *, names: bool = True) -> Axes:
    """Accuracy in per cent by the time that training, aggregation and evaluation took."""
    runs = arrange(runs)
    elapsed = runs[SECONDS].sum(axis=1, min_count=1).groupby(runs["run"]).cumsum()
    units = {"hours": 3600.0, "minutes": 60.0, "seconds": 1.0}
    unit = next((u for u, size in units.items() if elapsed.max() >= 2.0 * size), "seconds")
    timed = runs.assign(**{unit: elapsed.where(elapsed > 0.0) / units[unit]})
    label = f"{judged(runs)} accuracy (%)"
    return _curves(timed, ax, "test_acc", label, style.accuracy_axis, names, factor=100.0, x=unit)


@style.styled
def loss(runs: pd.DataFrame, ax: Axes, *, names: bool = True) -> Axes:
    """The loss by round: mean cross-entropy in nats, or what a trainer of the user's own took."""
    return _curves(runs, ax, "test_loss", f"{judged(runs)} loss", style.log_axis, names)


@style.styled
def metric(runs: pd.DataFrame, ax: Axes, name: str, *, names: bool = True) -> Axes:
    """A number that the user's own trainer measured, by round."""
    return _curves(runs, ax, f"test_metrics.{name}", name, style.linear_axis, names)


@style.styled
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
    column = f"layers.{layer}.{norm}" if layer is not None else norm
    return _curves(runs, ax, column, "L2 norm", style.log_axis, names)


@style.styled
def agreement(runs: pd.DataFrame, ax: Axes, *, names: bool = True) -> Axes:
    """N/E by round: 1 where all clients move alike, 1/√m where their updates are orthogonal.

    That mark is for clients of one weight.
    """
    runs = arrange(runs)
    moved = runs["mean_client_norm"].where(runs["mean_client_norm"] > 0.0)
    ratio = runs.assign(ratio=runs["mean_update_norm"] / moved)
    of_one_weight = runs[runs.get("client_weighting", pd.Series("", runs.index)) != "samples"]
    cohorts = pd.Series(of_one_weight.get("client_num_per_round", []), dtype=object).unique()
    sizes = np.sort(pd.to_numeric(cohorts, errors="coerce"))
    look = style.REFERENCE_LOOK
    marks = [("1: clients agree", 1.0, look)]
    marks += [(f"1/√{m:g}: orthogonal", 1.0 / math.sqrt(m), look) for m in sizes if m > 1]
    for _, value, _ in marks:
        ax.axhline(value, **look)
    return _curves(ratio, ax, "ratio", "N/E", style.log_axis, names, others=marks)


@style.styled
def integrated_norm(runs: pd.DataFrame, ax: Axes, *, names: bool = True) -> Axes:
    """The way that the served model has gone: the sum of its moves, by round."""
    return _curves(runs, ax, "integrated_norm", "sum of moves (L2)", style.linear_axis, names)


@style.styled
def client_spread(runs: pd.DataFrame, ax: Axes, *, names: bool = True) -> Axes:
    """The median norm of a client's update, and the band from the smallest to the largest.

    Over several seeds: the mean of the medians, the smallest and the largest of all.
    """
    low, middle, high = CLIENT_NORMS
    _curves(runs, ax, middle, "client update (L2)", style.log_axis, names, band=(low, high))
    if len(ax.lines) == 1:
        ax.set_title(str(ax.lines[0].get_label())[:26])
    return ax


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
    band: tuple[str, ...] = (),
    others: Sequence[End] = (),
) -> Axes:
    """A line for each label, with a band of a deviation, or between two columns.

    Rounds without a value are left out, so that a curve joins tested rounds, of several seeds those
    that all have that got so far; a deviation is drawn where two seeds or more have the round.
    """
    runs = _lines(runs)
    named = style.looks(runs)
    values = runs.assign(at=runs[x], mean=runs.get(column, math.nan) * factor)
    ends: list[End] = []
    for label, tested in values.dropna(subset=["at", "mean", *band]).groupby("label", sort=False):
        lengths = np.sort(tested.groupby("run")["round"].max())
        so_far = len(lengths) - np.searchsorted(lengths, tested["round"])
        part = tested[tested.groupby("round")["round"].transform("size") == so_far]
        by_round = part.groupby("round")
        shown = by_round[["at", "mean"]].mean()
        if band:
            low, high = by_round[band[0]].min(), by_round[band[1]].max()
        else:
            low, high = (shown["mean"] + sign * by_round["mean"].std() for sign in (-1, 1))
            least = shown["mean"].min()  # a logarithmic axis has no room for a band down to 0
            low = low.clip(lower=least / 10.0 if least >= 0.0 else None)
        look, marker = named[label], "o" if len(shown) <= FEW_POINTS else ""
        ax.plot(shown["at"], shown["mean"], label=label, marker=marker, markersize=2.6, **look)
        edges = shown.assign(low=low, high=high).dropna()[:: max(1, len(shown) // BAND_POINTS)]
        if len(edges) > 1:
            how = {"color": look["color"], "alpha": 0.16, "lw": 0}
            ax.fill_between(edges["at"], edges["low"], edges["high"], **how)
        ends.append((label, float(shown["mean"].iloc[-1]), look))
    ax.set(xlabel=x, ylabel=y_label)
    axis(ax)
    last = max((float(np.max(np.asarray(line.get_xdata()))) for line in ax.lines), default=0.0)
    ax.set_xlim(0.0, last or 1.0)
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=x == "round"))
    if names:
        in_bar = _colour_bar(runs, ax, {label: look for label, _, look in ends})
        style.end_labels(ax, [end for end in (*ends, *others) if end[0] not in in_bar])
    return ax


def _lines(runs: pd.DataFrame) -> pd.DataFrame:
    """Arranged runs; of several conditions, each line's name holds its own."""
    runs = arrange(runs)
    where = runs["data"] + " " + runs["condition"]
    if where[runs["deal"] != SINGLE_CLIENT].nunique() < 2:
        return runs
    runs = runs.assign(label=runs["label"] + ", " + where)
    return runs.assign(shade=shades(runs, ["method"]))


def _colour_bar(runs: pd.DataFrame, ax: Axes, looks_of: dict[str, style.Look]) -> list[str]:
    """A bar in place of names for a method with many lines that differ in one value."""
    lines = runs[runs["label"].isin(looks_of)].drop_duplicates("label")
    for method, variants in lines.groupby("method"):
        told = variants["label"].str.extract(r"\(([^,]+) ([^ ,]+)\)$")
        if len(variants) <= MANY_VARIANTS or told.isna().any(axis=None):
            continue
        own = [looks_of[label] for label in variants["label"]]
        colors = ListedColormap([to_rgba(look["color"], look["alpha"]) for look in own])
        norm = BoundaryNorm(np.arange(len(own) + 1) - 0.5, len(own))
        bar = style.figure_of(ax).colorbar(
            ScalarMappable(norm, colors), ax=ax, shrink=0.85, aspect=14
        )
        every = math.ceil(len(own) / 12)
        bar.set_ticks(range(0, len(own), every), labels=list(told[1])[::every])
        bar.ax.tick_params(length=0)
        bar.set_label(f"{method}, {told[0].iloc[0]}")
        return list(variants["label"])
    return []
