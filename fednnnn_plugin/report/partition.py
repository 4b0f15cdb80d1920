"""How a data set was dealt to the clients: counts, checks and a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from fednnnn_plugin.report.runs import printable
from fednnnn_plugin.report.style import (
    BLUE,
    PAPER,
    STYLE,
    VERMILION,
    log_axis,
    number_text,
    panels,
    save,
    styled,
)

SEPARATED_CLIENTS, VECTOR_CLIENTS, NAMED_CLASSES = 60, 400, 20


def client_counts(
    labels: npt.ArrayLike, parts: Sequence[npt.ArrayLike], class_names: Sequence[str] = ()
) -> pd.DataFrame:
    """Images by client (rows, from 0) and class (columns).

    Args:
        labels: class of each image, [n] integers.
        parts: for each client the positions of its images in ``labels``.
        class_names: of the labels 0, 1, ...; the numbers where there are none.
    """
    classes, class_of = np.unique(np.asarray(labels), return_inverse=True)
    rows = [
        np.bincount(class_of[np.asarray(part, dtype=np.intp)], minlength=classes.size)
        for part in parts
    ]
    named = int(classes.max(initial=0)) < len(class_names)
    names = [printable(class_names[label]) if named else str(label) for label in classes]
    clients = pd.RangeIndex(len(rows), name="client")
    return pd.DataFrame(np.array(rows), index=clients, columns=names)


def counts_text(counts: pd.DataFrame) -> str:
    """For a terminal: of many clients the ends; and how sizes and classes spread."""
    sizes, classes = counts.sum(axis=1), (counts > 0).sum(axis=1)
    shown = counts.astype(object).where(counts > 0, "·")
    shown.insert(0, "images", sizes)
    shown.insert(1, "classes", classes)
    low, middle, high = sizes.quantile([0.0, 0.5, 1.0])
    lines = [shown.reset_index().to_string(index=False, max_rows=25, max_cols=28), ""]
    lines += [f"images a client: smallest {low:g}, median {middle:g}, largest {high:g}"]
    lines += [f"classes a client: {classes.min()} to {classes.max()}"]
    exponent = fitted_exponent(sizes)
    fit = "" if math.isnan(exponent) else f"fitted exponent {exponent:.2f}"
    return "\n".join([*lines, f"sizes by rank: {fit or 'too few for a fit'}"])


def fitted_exponent(sizes: npt.ArrayLike) -> float:
    """The a of size = c rank^(-a), by least squares on logarithms; NaN of fewer than 3 sizes."""
    positive = np.sort(np.asarray(sizes, dtype=np.float64))[::-1]
    positive = positive[positive > 0]
    if positive.size < 3:
        return math.nan
    slope = np.polyfit(np.log(np.arange(1, positive.size + 1)), np.log(positive), 1)[0]
    return float(0.0 - slope)


@styled
def partition(counts: pd.DataFrame, ax: Axes, *, names: bool = True) -> Axes:
    """Each client's images by class, in per cent of the client, so that small ones show too.

    ``counts`` is what ``client_counts`` gives; ``names`` are those of the classes at the right.
    """
    shares = counts.div(counts.sum(axis=1).clip(lower=1), axis=0) * 100.0
    tops = shares.cumsum(axis=1)
    edges = np.arange(len(counts) + 1) - 0.5
    colors = dict(zip(counts.columns, class_colors(len(counts.columns)), strict=True))
    for name, color in colors.items():
        bottoms = (tops[name] - shares[name]).to_numpy()
        steps = ax.stairs(tops[name], edges, baseline=bottoms, fill=True, color=color, linewidth=0)
        steps.set_rasterized(len(counts) > VECTOR_CLIENTS)
    if len(counts) <= SEPARATED_CLIENTS:
        ax.vlines(edges[1:-1], 0.0, 100.0, color=PAPER, linewidth=1.2)
    ax.set(xlim=(edges[0], edges[-1]), ylim=(0.0, 100.0), xlabel="client")
    ax.set_ylabel("share of the client's images (%)")
    ax.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    if names:  # from the top down, as they are stacked
        keys = [Patch(color=color, label=name[:24]) for name, color in colors.items()]
        title = "class" if len(keys) <= NAMED_CLASSES else f"the first {NAMED_CLASSES} classes"
        ax.legend(
            handles=keys[:NAMED_CLASSES][::-1],
            title=title,
            loc="center left",
            bbox_to_anchor=(1.0, 0.5),
            handlelength=1.0,
        )
    return ax


@styled
def client_sizes(counts: pd.DataFrame, ax: Axes) -> Axes:
    """Sizes by rank, both axes logarithmic, where a power law is a straight line."""
    sizes = np.sort(counts.sum(axis=1).to_numpy(dtype=np.float64))[::-1]
    sizes = sizes[sizes > 0]
    ranks = np.arange(1, sizes.size + 1)
    ax.plot(ranks, sizes, ".", color=BLUE, markersize=4, rasterized=sizes.size > VECTOR_CLIENTS)
    exponent = fitted_exponent(sizes)
    if not math.isnan(exponent):
        level = math.exp(float(np.mean(np.log(sizes) + exponent * np.log(ranks))))
        ax.plot(ranks, level * ranks**-exponent, "--", color=VERMILION, linewidth=1.1)
        text = "all of one size" if abs(exponent) < 0.005 else f"exponent {exponent:.2f}"
        ax.annotate(text, (0.98, 0.92), xycoords="axes fraction", ha="right", color=VERMILION)
    log_axis(ax)
    ax.set(xscale="log", xlabel="rank of the client by size", ylabel="images")
    ax.xaxis.set_major_formatter(FuncFormatter(number_text))
    ax.xaxis.set_minor_locator(NullLocator())
    return ax


def save_partition(counts: pd.DataFrame, title: str, path: Path) -> None:
    """Write both pictures side by side, as the path's suffix says."""
    left, right = panels(9.4, 3.1, 1, 2, width_ratios=(2.0, 1.0))
    partition(counts, left)
    left.set_title(title, loc="left", fontsize=STYLE["axes.titlesize"])
    client_sizes(counts, right)
    save(left, path)


def class_colors(number: int) -> list[str]:
    """Ten or twenty colours told apart by eye; beyond, steps of one scale."""
    if number > 20:
        return [to_hex(colormaps["turbo"](index / (number - 1))) for index in range(number)]
    return [to_hex(colormaps["tab10" if number <= 10 else "tab20"](i)) for i in range(number)]
