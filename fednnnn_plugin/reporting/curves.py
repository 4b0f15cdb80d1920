"""Lines by round: what all figures of runs take, and how they draw, name and arrange lines."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import Parameter, signature
from typing import ParamSpec, TypedDict

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from fednnnn_plugin.reporting import style
from fednnnn_plugin.reporting.conditions import SINGLE_CLIENT, arrange, check_runs, shades

P = ParamSpec("P")
FEW_POINTS, BAND_POINTS = 15, 300


class Lines(TypedDict, total=False):
    """What every figure of lines takes."""

    hue: str | Sequence[str] | None
    names: bool
    legend: bool
    palette: style.Palette | None


def curves(
    runs: pd.DataFrame,
    ax: Axes | None,
    column: str,
    y_label: str,
    axis: Callable[[Axes], None],
    *,
    title: str = "",
    hue: str | Sequence[str] | None = None,
    names: bool = True,
    legend: bool = False,
    palette: style.Palette | None = None,
    factor: float = 1.0,
    x: str = "round",
    band: tuple[str, ...] = (),
) -> Axes:
    """A line for each label, with a band of a deviation, or between two columns.

    Rounds without a value are left out, so that a curve joins tested rounds, of several seeds those
    that all have that got so far, or of a line over time those that all have: no line goes back. A
    deviation is drawn where two seeds or more have the round.
    """
    runs, ax = arranged_lines(runs, hue), style.axes(ax)
    if title:
        ax.set_title(title)
    named = style.looks(runs, palette)
    lowest, highest = band or ("mean", "mean")
    values = runs[["label", "run", "round", *band]].assign(
        at=runs[x], mean=runs.get(column, math.nan) * factor
    )
    tested = values.dropna(subset=["at", "mean", *band])
    lengths = tested.groupby(["label", "run"])["round"].max()
    points = tested.groupby(["label", "round"]).agg(
        at=("at", "mean"), mean=("mean", "mean"), sd=("mean", "std"), seeds=("run", "size"),
        low=(lowest, "min"), high=(highest, "max"),
    )  # fmt: skip
    for label in tested["label"].unique():
        shown, ended = points.loc[label], np.sort(lengths.loc[label])
        gone = np.searchsorted(ended, shown.index) if x == "round" else 0
        shown = shown[shown["seeds"] == len(ended) - gone]
        if shown.empty:
            continue
        at, mean, sd, _, low, high = shown.to_numpy(float).T
        if not band:
            low, high = mean - sd, mean + sd
            if mean.min() >= 0.0:  # a logarithmic axis has no room for a band down to 0
                low = np.maximum(low, mean.min() / 10.0)
        look, marker = named[label], "o" if len(shown) <= FEW_POINTS else ""
        ax.plot(at, mean, label=label, marker=marker, markersize=2.6, **look)
        edges = np.flatnonzero(~np.isnan(low))[:: max(1, len(shown) // BAND_POINTS)]
        if len(edges) > 1:
            fill = {"color": look["color"], "alpha": 0.16, "lw": 0}
            ax.fill_between(at[edges], low[edges], high[edges], **fill)
    ax.set(xlabel=x, ylabel=y_label)
    axis(ax)
    last = max((float(np.max(np.asarray(line.get_xdata()))) for line in ax.lines), default=0.0)
    ax.set_xlim(0.0, last or 1.0)
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=x == "round"))
    name_lines(ax, named, names=names, legend=legend)
    return ax


def name_lines(ax: Axes, looks: dict[str, style.Look], *, names: bool, legend: bool) -> None:
    """Name the lines in a legend, or at their ends."""
    if legend:
        ax.legend()
    elif names:
        style.end_labels(ax, looks)


def arranged_lines(runs: pd.DataFrame, hue: str | Sequence[str] | None) -> pd.DataFrame:
    """Arranged runs; of several conditions, each line's name holds its own."""
    runs = arrange(runs, hue=hue)
    where = runs["data"] + " " + runs["condition"]
    if where[runs["partition"] != SINGLE_CLIENT].nunique() < 2:
        return runs
    runs = runs.assign(label=runs["label"] + ", " + where)
    return runs.assign(shade=shades(runs, ["method"]))


def of_lines(draw: Callable[P, Axes]) -> Callable[P, Axes]:
    """Draw in our style; the signature, as ``help`` shows it, has the keywords of ``Lines``."""
    styled, bare = style.styled(draw), signature(draw)
    own = [each for each in bare.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
    of_all = [signature(curves).parameters[name] for name in Lines.__annotations__]
    shown = bare.replace(parameters=[*own, *of_all])

    @wraps(draw)
    def drawing(*args: P.args, **kwargs: P.kwargs) -> Axes:
        try:
            given = shown.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{draw.__name__}() {error}") from None
        check_runs(given["runs"])
        return styled(*args, **kwargs)

    drawing.__dict__["__signature__"] = shown
    return drawing
