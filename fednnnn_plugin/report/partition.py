"""How a data set was dealt to the clients: counts, checks and a picture."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
    VERMILION,
    log_axis,
    number_text,
    panels,
    save,
    styled,
)

# A fit to sizes that are whole numbers comes this near to the law that they follow.
EXPONENT_TOLERANCE = 0.05
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
    rows = [np.bincount(class_of[np.asarray(part)], minlength=classes.size) for part in parts]
    named = int(classes.max(initial=0)) < len(class_names)
    names = [printable(class_names[label]) if named else str(label) for label in classes]
    clients = pd.RangeIndex(len(rows), name="client")
    return pd.DataFrame(np.array(rows), index=clients, columns=names)


def counts_text(counts: pd.DataFrame) -> str:
    """The counts and the spread of the sizes for a terminal; of many clients the ends."""
    sizes = counts.sum(axis=1)
    shown = counts.astype(object).where(counts > 0, "·")
    shown.insert(0, "images", sizes)
    shown.insert(1, "classes", (counts > 0).sum(axis=1))
    low, middle, high = sizes.quantile([0.0, 0.5, 1.0])
    table = shown.reset_index().to_string(index=False, max_rows=25, max_cols=28)
    return f"{table}\n\nimages a client: smallest {low:g}, median {middle:g}, largest {high:g}"


def checks(
    counts: pd.DataFrame,
    total: int,
    *,
    method: str,
    sizes: str,
    classes_per_client: int = 2,
    power_law_exponent: float = 1.0,
    min_samples: int = 10,
) -> Iterator[str]:
    """A line for each promise of the partition: whether it is kept, and the numbers.

    Args:
        counts: as ``client_counts`` gives them.
        total: how many images there are.
        method, sizes, classes_per_client, power_law_exponent, min_samples: as given to
            ``partition``.
    """
    held, classes = counts.sum(axis=1).to_numpy(), (counts > 0).sum(axis=1).to_numpy()

    def line(promise: str, kept: bool, found: str) -> str:
        return f"{'ok' if kept else 'NO':<3} {promise}: {found}"

    dealt = int(held.sum())
    yield line("every image is dealt to one client", dealt == total, f"{dealt} of {total} images")
    if method != "dirichlet":
        right, promise = classes == classes_per_client, f"holds {classes_per_client} classes"
        if method == "iid":  # a client of fewer images than there are classes cannot hold them all
            right = (classes == counts.shape[1]) | (held < counts.shape[1])
            promise = "of enough images holds all classes"
        spread = " to ".join(map(str, sorted({int(classes.min()), int(classes.max())})))
        found = f"{spread} classes at {right.sum()} clients"
        yield line(f"every client {promise}", bool(right.all()), found)
    if sizes == "balanced" and method != "dirichlet":
        apart = int(np.ptp(held))
        yield line("all clients are of one size, up to 1 image", apart <= 1, f"{apart} apart")
        return
    least = int(held.min())
    promise = f"every client has at least {min_samples} images"
    yield line(promise, least >= min_samples, f"the smallest {least}")
    # The law holds for the clients above the floor that every client is given.
    exponent = fitted_exponent(held[held > min_samples])
    if sizes == "power_law" and not math.isnan(exponent):
        near = math.isclose(exponent, power_law_exponent, abs_tol=EXPONENT_TOLERANCE)
        promise = f"sizes follow rank^(-{power_law_exponent:g})"
        yield line(promise, near, f"fitted exponent {exponent:.3f}")


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
        keys = keys[:NAMED_CLASSES][::-1]
        where = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5), "handlelength": 1.0}
        ax.legend(handles=keys, title=title, labelspacing=0.3, **where)
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
        place = {"transform": ax.transAxes, "ha": "right", "va": "top"}
        ax.text(0.98, 0.95, text, color=VERMILION, **place)
    log_axis(ax)
    ax.set(xscale="log", xlabel="rank of the client by size", ylabel="images")
    ax.xaxis.set_major_formatter(FuncFormatter(number_text))
    ax.xaxis.set_minor_locator(NullLocator())
    return ax


def save_partition(counts: pd.DataFrame, title: str, path: Path) -> None:
    """Write both pictures side by side, as the path's suffix says."""
    left, right = panels(9.4, 3.1, 1, 2, width_ratios=(2.0, 1.0))
    partition(counts, left)
    left.set_title(title)
    client_sizes(counts, right)
    save(left.get_figure(root=True), path)


def class_colors(number: int) -> list[str]:
    """Ten or twenty colours told apart by eye; beyond, steps of one scale."""
    if number > 20:
        return [to_hex(colormaps["turbo"](index / (number - 1))) for index in range(number)]
    return [to_hex(colormaps["tab10" if number <= 10 else "tab20"](i)) for i in range(number)]
