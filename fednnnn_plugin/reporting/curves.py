"""Lines by round: what all figures of runs take, and how they draw, name and arrange lines."""

import math
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import Parameter, signature
from typing import Any, ParamSpec, TypedDict, get_type_hints

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from fednnnn_plugin.errors import in_python
from fednnnn_plugin.reporting import style
from fednnnn_plugin.reporting.conditions import LINE, SINGLE_CLIENT, arrange, shades

P = ParamSpec("P")
FEW_POINTS, BAND_POINTS = 15, 300


class Lines(TypedDict, total=False):
    """What every figure of lines takes."""

    hue: str | Sequence[str] | None
    names: bool
    legend: bool
    palette: style.Palette | None


_DEFAULTS = {"hue": None, "names": True, "legend": False, "palette": None}
_OF_ALL = [
    Parameter(name, Parameter.KEYWORD_ONLY, default=_DEFAULTS[name], annotation=hint)
    for name, hint in get_type_hints(Lines).items()
]


def of_lines(draw: Callable[P, Axes]) -> Callable[P, Axes]:
    """Arrange the runs by ``hue``, and draw them in our style.

    A figure gets every keyword of ``Lines``; the signature, as ``help`` shows it, has them too.
    """
    bare = signature(draw)
    own = [each for each in bare.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
    shown = bare.replace(parameters=[*own, *_OF_ALL])
    styled: Callable[..., Axes] = style.styled(draw)

    @in_python
    @wraps(draw)
    def drawing(*args: Any, **kwargs: Any) -> Axes:
        try:
            given = shown.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{draw.__name__}() {error}") from None
        given.apply_defaults()
        given.arguments["runs"] = _arranged(given.arguments["runs"], given.arguments["hue"])
        return styled(*given.args, **given.kwargs)

    drawing.__dict__["__signature__"] = shown
    return drawing


def curves(
    runs: pd.DataFrame,
    ax: Axes | None,
    column: str,
    y_label: str,
    axis: Callable[[Axes], None],
    how: Lines,
    *,
    title: str = "",
    factor: float = 1.0,
    x: str = "round",
    band: tuple[str, ...] = (),
) -> Axes:
    """A line for each label of arranged runs, with a band of a deviation, or between two columns.

    Rounds without a value are left out, so that a curve joins tested rounds, of several seeds those
    that all have that got so far, or of a line over time those that all have: no line goes back. A
    deviation is drawn where two seeds or more have the round.
    """
    ax, looks = style.axes(ax), style.looks(runs, how["palette"])
    if title:
        ax.set_title(title)
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
        look, marker = looks[label], "o" if len(shown) <= FEW_POINTS else ""
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
    name_lines(ax, looks, how)
    return ax


def name_lines(ax: Axes, looks: dict[str, style.Look], how: Lines) -> None:
    """Name the lines in a legend, or at their ends."""
    if how["legend"]:
        ax.legend()
    elif how["names"]:
        style.end_labels(ax, looks)


def titled(ax: Axes) -> Axes:
    """A single line's name is the title."""
    if len(ax.lines) == 1:
        ax.set_title(str(ax.lines[0].get_label())[:26])
    return ax


def _arranged(runs: pd.DataFrame, hue: str | Sequence[str] | None) -> pd.DataFrame:
    """Arranged runs; of several conditions, or of two with a name in common, names hold theirs."""
    runs = arrange(runs, hue=hue)
    where = runs["data"] + " " + runs["condition"]
    twice = runs.drop_duplicates(LINE)["label"].duplicated().any()
    if not twice and where[runs["partition"] != SINGLE_CLIENT].nunique() < 2:
        return runs
    runs = runs.assign(label=runs["label"] + ", " + where)
    return runs.assign(shade=shades(runs, ["method"]))
