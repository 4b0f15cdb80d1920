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
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from fednnnn_plugin.report.runs import printable
from fednnnn_plugin.report.style import BLUE, PAPER, VERMILION, log_axis, number_text, save, styled

# A fit to sizes that are whole numbers comes this near to the law that they follow.
EXPONENT_TOLERANCE = 0.05
SEPARATED_CLIENTS, DRAWN_CLIENTS, NAMED_CLASSES = 60, 400, 20


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
    spread = f"images a client: smallest {low:g}, median {middle:g}, largest {high:g}"
    table = shown.reset_index().to_string(index=False, max_rows=25, max_cols=28)
    return f"{table}\n\n{spread}"


def checks(
    labels: npt.ArrayLike,
    parts: Sequence[npt.ArrayLike],
    *,
    method: str,
    sizes: str,
    classes_per_client: int = 2,
    power_law_exponent: float = 1.0,
    min_samples: int = 10,
) -> list[str]:
    """A line for each promise of the partition: whether it is kept, and the numbers.

    Args:
        labels, parts: as for ``client_counts``.
        method, sizes, classes_per_client, power_law_exponent, min_samples: as given to
            ``partition``.
    """
    counts = client_counts(labels, parts)
    held, total = counts.sum(axis=1).to_numpy(), int(np.size(labels))
    dealt = np.concatenate([np.asarray(part) for part in parts])
    found = [("every image is dealt to one client", np.unique(dealt).size == dealt.size == total,
              f"{np.unique(dealt).size} of {total} images")]  # fmt: skip
    classes = (counts > 0).sum(axis=1).to_numpy()
    spread = "to".join(f" {n} " for n in sorted({classes.min(), classes.max()})).strip()
    if method == "n_class":
        right = classes == classes_per_client
        promise = f"every client holds {classes_per_client} classes"
        found.append((promise, right.all(), f"{spread} classes at {right.sum()} clients"))
    elif method == "iid":  # a client of fewer images than there are classes cannot hold them all
        right = (classes == counts.shape[1]) | (held < counts.shape[1])
        promise = "every client of enough images holds all classes"
        found.append((promise, right.all(), f"{spread} classes at {right.sum()} clients"))
    if sizes == "balanced" and method != "dirichlet":
        apart = int(np.ptp(held))
        found.append(("all clients are of one size, up to 1 image", apart <= 1, f"{apart} apart"))
    else:
        smallest = int(held.min())
        promise = f"every client has at least {min_samples} images"
        found.append((promise, smallest >= min_samples, f"the smallest {smallest}"))
    if sizes == "power_law":
        # The law holds for the clients above the floor that every client is given.
        exponent = fitted_exponent(held[held > min_samples])
        promise = f"sizes follow rank^(-{power_law_exponent:g})"
        near = math.isclose(exponent, power_law_exponent, abs_tol=EXPONENT_TOLERANCE)
        few = math.isnan(exponent)
        what = "too few clients for a fit" if few else f"fitted exponent {exponent:.3f}"
        found.append((promise, near or few, what))
    return [f"{'ok' if kept else 'NO':<3} {promise}: {what}" for promise, kept, what in found]


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

    Args:
        counts: as ``client_counts`` gives them.
        ax: where to draw.
        names: whether to name the classes at the right.
    """
    shares = counts.div(counts.sum(axis=1).clip(lower=1), axis=0) * 100.0
    tops = shares.cumsum(axis=1)
    edges = np.arange(len(counts) + 1) - 0.5
    colors = class_colors(len(counts.columns))
    for name, color in zip(counts.columns, colors, strict=True):
        bottom = (tops[name] - shares[name]).to_numpy()
        ax.stairs(tops[name], edges, baseline=bottom, fill=True, color=color, linewidth=0,
                  rasterized=len(counts) > DRAWN_CLIENTS)  # fmt: skip
    if len(counts) <= SEPARATED_CLIENTS:
        ax.vlines(edges[1:-1], 0.0, 100.0, color=PAPER, linewidth=1.2)
    ax.set(xlim=(edges[0], edges[-1]), ylim=(0.0, 100.0), xlabel="client")
    ax.set_ylabel("share of the client's images (%)")
    ax.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    if names:  # from the top down, as they are stacked
        pairs = list(zip(counts.columns, colors, strict=True))[:NAMED_CLASSES]
        keys = [Patch(color=color, label=name[:24]) for name, color in reversed(pairs)]
        title = "class" if len(pairs) == len(colors) else f"the first {NAMED_CLASSES} classes"
        ax.legend(handles=keys, title=title, loc="center left", bbox_to_anchor=(1.0, 0.5),
                  handlelength=1.0, labelspacing=0.3)  # fmt: skip
    return ax


@styled
def client_sizes(counts: pd.DataFrame, ax: Axes) -> Axes:
    """Sizes by rank, both axes logarithmic, where a power law is a straight line."""
    sizes = np.sort(counts.sum(axis=1).to_numpy(dtype=np.float64))[::-1]
    sizes = sizes[sizes > 0]
    ranks = np.arange(1, sizes.size + 1)
    ax.plot(ranks, sizes, ".", color=BLUE, markersize=4, rasterized=sizes.size > DRAWN_CLIENTS)
    exponent = fitted_exponent(sizes)
    if not math.isnan(exponent):
        level = math.exp(float(np.mean(np.log(sizes) + exponent * np.log(ranks))))
        ax.plot(ranks, level * ranks**-exponent, "--", color=VERMILION, linewidth=1.1)
        level_text = "all of one size" if abs(exponent) < 0.005 else f"rank^−{exponent:.2f}"
        ax.text(0.98, 0.95, level_text, color=VERMILION, transform=ax.transAxes, ha="right",
                va="top")  # fmt: skip
    log_axis(ax)
    ax.set(xscale="log", xlabel="rank of the client by size", ylabel="images")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number_text(value)))
    ax.xaxis.set_minor_locator(NullLocator())
    return ax


def save_partition(counts: pd.DataFrame, title: str, path: Path) -> None:
    """Write both pictures side by side, as the path's suffix says."""
    figure = Figure(figsize=(9.4, 3.1), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2.0, 1.0))
    partition(counts, left)
    left.set_title(title)
    client_sizes(counts, right)
    save(figure, path)


def class_colors(number: int) -> list[str]:
    """Ten or twenty colours told apart by eye; beyond, steps of one scale."""
    if number > 20:
        return [to_hex(colormaps["turbo"](index / (number - 1))) for index in range(number)]
    return [to_hex(c) for c in colormaps["tab10" if number <= 10 else "tab20"].colors[:number]]
