"""Figures of how a data set is partitioned among the clients."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, NullLocator
from pydantic import BaseModel

from fednnnn_plugin.errors import UserError, in_python
from fednnnn_plugin.files import write_atomically
from fednnnn_plugin.reporting.scales import log_axis
from fednnnn_plugin.reporting.style import BLUE, PAPER, axes, drawn, figure_of, panels, styled

if TYPE_CHECKING:
    from fednnnn_plugin.recipe import Recipe

SEPARATED_CLIENTS, VECTOR_CLIENTS, NAMED_CLASSES = 60, 400, 20


def counts_text(counts: pd.DataFrame) -> str:
    """For a terminal: of many clients the ends; and how sizes and classes spread."""
    sizes, classes = counts.sum(axis=1), (counts > 0).sum(axis=1)
    shown = counts.astype(object).where(counts.to_numpy() > 0, "·")
    shown = pd.concat([shown, sizes.rename("samples"), classes.rename("classes")], axis=1)
    shown = shown.rename_axis(index=None, columns="client")
    low, middle, high = sizes.quantile([0.0, 0.5, 1.0])
    ranked, fit = np.sort(sizes[sizes > 0])[::-1], "too few for a fit"
    if ranked.size > 2:  # size = c rank^(-a), by least squares on logarithms
        slope = np.polyfit(np.log(np.arange(1, ranked.size + 1)), np.log(ranked), 1)[0]
        fit = f"fitted exponent {round(-slope, 2) + 0.0:.2f}"
    return (
        f"{shown.to_string(max_rows=25, max_cols=28)}\n\n"
        f"samples a client: smallest {low:.9g}, median {middle:.9g}, largest {high:.9g}\n"
        f"classes a client: {classes.min()} to {classes.max()}\n"
        f"sizes by rank: {fit}"
    )


@in_python
@styled
def partition(
    counts: Recipe | Path | str | pd.DataFrame | npt.ArrayLike,
    ax: Axes | None = None,
    *,
    allow_code: bool = False,
) -> Axes:
    """Each client's samples by class, in per cent of the client, so that small ones show too.

    Args:
        counts: a recipe, or its path or name, whose training samples are partitioned; or what
            ``client_counts`` returns, or an array ``[K, classes]`` of counts or shares, finite and
            at least 0. A client without samples stays empty.
        ax: where to draw.
        allow_code: let a ``module:name`` in the recipe run.

    Raises:
        UserError: a mistake in the recipe, labels that are no classes, or no such array.
    """
    if isinstance(counts, str | Path | BaseModel):  # a Recipe; its module would import torch
        from fednnnn_plugin.recipe.data_spec import partition_counts

        counts = partition_counts(cast("Recipe | Path | str", counts), allow_code=allow_code)
    counts = _table(counts)
    ax, samples = axes(ax), counts.to_numpy()
    totals = samples.sum(axis=1, keepdims=True)
    shares = 100.0 * samples / np.where(totals > 0, totals, 1.0)
    tops = shares.cumsum(axis=1)
    bottoms = tops - shares
    edges = np.arange(len(counts) + 1) - 0.5
    number = len(counts.columns)
    scale = "tab10" if number <= 10 else "tab20" if number <= 20 else "turbo"
    how: Any = {"fill": True, "linewidth": 0, "rasterized": len(counts) > VECTOR_CLIENTS}
    colors = colormaps[scale].resampled(number)(range(number))
    for name, top, bottom, color in zip(counts, tops.T, bottoms.T, colors, strict=True):
        ax.stairs(top, edges, baseline=bottom, color=color, label=name[:24], **how)
    if len(counts) <= SEPARATED_CLIENTS:
        ax.vlines(edges[1:-1], 0.0, 100.0, color=PAPER, linewidth=1.2)
    ax.set(xlim=(edges[0], edges[-1]), ylim=(0.0, 100.0), xlabel="client")
    ax.set_ylabel("share of the client's samples (%)")
    ax.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    ax.legend(
        handles=ax.patches[:NAMED_CLASSES],
        title="class" if number <= NAMED_CLASSES else f"the first {NAMED_CLASSES} classes",
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        handlelength=1.0,
        reverse=True,  # from the top down, as they are stacked
    )
    return ax


def _table(counts: pd.DataFrame | npt.ArrayLike) -> pd.DataFrame:
    try:
        table = pd.DataFrame(counts if isinstance(counts, pd.DataFrame) else np.asarray(counts))
        numbers = table.to_numpy(dtype=float)
        if not numbers.size or not np.isfinite(numbers).all() or numbers.min() < 0:
            raise ValueError
    except (TypeError, ValueError):
        must = "must be numbers [clients, classes], finite and at least 0"
        raise UserError("counts", allowed=must) from None
    return table.rename(columns=str)


@styled
def client_sizes(counts: pd.DataFrame | npt.ArrayLike, ax: Axes | None = None) -> Axes:
    """Client sizes by rank, both axes logarithmic: a power law is a straight line.

    Args:
        counts: samples of each client (rows) by class (columns), as ``client_counts`` returns them,
            or such an array.
        ax: where to draw.
    """
    ax, sizes = axes(ax), np.sort(_table(counts).sum(axis=1))[::-1]
    sizes = sizes[sizes > 0]
    rank = np.arange(1, sizes.size + 1)
    ax.plot(rank, sizes, ".", color=BLUE, markersize=4, rasterized=sizes.size > VECTOR_CLIENTS)
    log_axis(ax)
    ax.set(xscale="log", xlabel="rank of the client by size", ylabel="samples")
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_locator(NullLocator())
    return ax


def save_partition(counts: pd.DataFrame, title: str, path: Path) -> None:
    """Write both pictures side by side, as the path's suffix says."""
    left, right = panels(9.4, 3.1, 1, 2, width_ratios=(2.0, 1.0))
    figure_of(left).set_layout_engine("constrained")  # names of classes are of any length
    partition(counts, left)
    left.set_title(title, loc="left", fontsize=8.0)
    client_sizes(counts, right)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path.resolve(), drawn(left, path.suffix.lower()[1:]))
