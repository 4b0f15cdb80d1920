"""The figures, each on a matplotlib ``Axes``.

The functions draw a table of :func:`~fednnnn_plugin.read_runs`, except ``partition``,
``client_sizes`` and ``search``. They draw on ``ax``, by default the ``Axes`` of a new figure, and
return it. A line is the mean over seeds, its band one sample standard deviation. ``hue`` names the
column or columns whose values tell the lines apart, as in seaborn; without it these are the method
and the settings that differ. ``names`` writes the names at the ends of the lines; ``legend`` draws
a legend instead; ``palette`` gives colours by the name of a line or a method. matplotlib's defaults
hold below our style, whatever a ``matplotlibrc`` says. A wrong argument is a ``UserError``.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from typing_extensions import Unpack

from fednnnn_plugin.data import class_counts
from fednnnn_plugin.errors import check_known
from fednnnn_plugin.quantities import NORMS, ClientNorms
from fednnnn_plugin.reporting import result_figures as results
from fednnnn_plugin.reporting import scales, style
from fednnnn_plugin.reporting import search_figures as searched
from fednnnn_plugin.reporting import split_figures as splits
from fednnnn_plugin.reporting.conditions import judged
from fednnnn_plugin.reporting.curves import Lines, curves, name_lines, of_lines, titled
from fednnnn_plugin.reporting.runs import SECONDS, layers, own_metrics

__all__ = [
    "STYLE",
    "accuracy",
    "accuracy_by_seconds",
    "agreement",
    "class_accuracy",
    "client_counts",
    "client_distribution",
    "client_quantiles",
    "client_sizes",
    "client_spread",
    "integrated_norm",
    "loss",
    "metric",
    "norms",
    "partition",
    "search",
]

STYLE, search, client_counts = style.STYLE, searched.search, class_counts.client_counts
partition, client_sizes = splits.partition, splits.client_sizes
client_quantiles, client_distribution = results.client_quantiles, results.client_distribution
class_accuracy = results.class_accuracy
# Accuracies of a record, by client and by class, and what an axis calls them.
_OF_PARTS = {
    f"{of}_acc.{name}": f"accuracy of {what} (%)"
    for of, all_, tenth, one in (
        ("client", "the mean client", "the worst 10 % of clients", "the worst client"),
        ("class", "the mean class", "the worst 10 % of classes", "the worst class"),
    )
    for name, what in (("mean", all_), ("worst_10", tenth), ("worst", one))
}


@of_lines
def accuracy(
    runs: pd.DataFrame,
    ax: Axes | None = None,
    *,
    column: str = "test_acc",
    title: str = "",
    scale: scales.Scale | None = None,
    **how: Unpack[Lines],
) -> Axes:
    """Accuracy in per cent by round.

    ``column`` is ``"test_acc"``, of the evaluated model, or ``"served_test_acc"``; of runs with
    ``per_client`` also ``"client_acc.mean"``, ``"client_acc.worst_10"`` and
    ``"client_acc.worst"``, and with ``per_class`` the same of ``class_acc``. ``scale`` is
    ``"linear"``, or ``"error"``, which is logarithmic in 100 % minus the accuracy; by default the
    latter if an accuracy is above 95 %.
    """
    there = [name for name in _OF_PARTS if name in runs]
    check_known("column", column, ("test_acc", "served_test_acc", *there))
    axis = partial(scales.accuracy_axis, scale=scale)
    label = _OF_PARTS.get(column, f"{judged(runs)} accuracy (%)")
    return curves(runs, ax, column, label, axis, how, title=title, factor=100.0)


@of_lines
def accuracy_by_seconds(
    runs: pd.DataFrame,
    ax: Axes | None = None,
    *,
    scale: scales.Scale | None = None,
    **how: Unpack[Lines],
) -> Axes:
    """Accuracy in per cent by the time that training, aggregation and evaluation took."""
    elapsed = runs[SECONDS].sum(axis=1, min_count=1).groupby(runs["run"]).cumsum()
    units = {"hours": 3600.0, "minutes": 60.0, "seconds": 1.0}
    unit = next((u for u, size in units.items() if elapsed.max() >= 2.0 * size), "seconds")
    timed = runs.assign(**{unit: elapsed.where(elapsed > 0.0) / units[unit]})
    label = f"{judged(runs)} accuracy (%)"
    axis = partial(scales.accuracy_axis, scale=scale)
    return curves(timed, ax, "test_acc", label, axis, how, factor=100.0, x=unit)


@of_lines
def loss(runs: pd.DataFrame, ax: Axes | None = None, **how: Unpack[Lines]) -> Axes:
    """The mean test loss by round: cross-entropy in nats, or the loss that a recipe names."""
    return curves(runs, ax, "test_loss", f"{judged(runs)} loss", scales.log_axis, how)


@of_lines
def metric(runs: pd.DataFrame, ax: Axes | None = None, *, name: str, **how: Unpack[Lines]) -> Axes:
    """A custom metric by round; ``name`` is its name in ``test_metrics``."""
    check_known("name", name, own_metrics(runs).values())
    return curves(runs, ax, f"test_metrics.{name}", name, scales.linear_axis, how)


@of_lines
def norms(
    runs: pd.DataFrame,
    ax: Axes | None = None,
    *,
    norm: str = "mean_update_norm",
    layer: str | None = None,
    **how: Unpack[Lines],
) -> Axes:
    """An L2 norm by round: N (``mean_update_norm``), E (``mean_client_norm``), or server step.

    ``norm`` is its name in ``metrics.jsonl``; ``layer`` a module, such as ``fc3``, or None for the
    whole model.
    """
    check_known("norm", norm, NORMS)
    column = f"{_prefix(runs, layer)}{norm}"
    return curves(runs, ax, column, "L2 norm", scales.log_axis, how, title=NORMS[norm])


@of_lines
def agreement(
    runs: pd.DataFrame,
    ax: Axes | None = None,
    *,
    layer: str | None = None,
    **how: Unpack[Lines],
) -> Axes:
    """N/E by round: 1 if all updates have the same direction; dotted: if they were orthogonal.

    ``layer`` is a module, such as ``fc3``, or None for the whole model.

    The dotted mark is √(Σ α² ‖Δ‖²)/E, as recorded. For layers and records without it, and clients
    of equal weight, it is 1/√m, which is right if all updates have the same length.
    """
    ax, colors, of = style.axes(ax), style.looks(runs, how["palette"]), _prefix(runs, layer)
    moved = runs[f"{of}mean_client_norm"].where(runs[f"{of}mean_client_norm"] > 0.0)
    weighting, sampling = (runs.get(key) for key in ("client_weighting", "client_sampling"))
    even = pd.Series(weighting == "uniform", runs.index) & (sampling != "by_size")
    clients = runs["clients"].astype(float)
    mark = (1.0 / np.sqrt(clients)).where(even & (clients > 1.0))
    if layer is None:  # a layer's is on no record
        mark = (runs["orthogonal_norm"] / moved).fillna(mark)
    ratio = runs.assign(ratio=runs[f"{of}mean_update_norm"] / moved, mark=mark.where(moved > 0.0))
    unnamed: Lines = {**how, "names": False, "legend": False}
    curves(ratio, ax, "ratio", "N/E", scales.log_axis, unnamed)
    agree, orthogonal = "1: clients agree", "dotted: orthogonal"
    marked = ratio.dropna(subset=["mark"]).groupby("label", sort=False)
    for place, (label, line) in enumerate(marked):
        curve = line.groupby("round")["mark"].mean()
        own = style.REFERENCE_LOOK | {"color": colors[label]["color"], "alpha": 0.7}
        ax.plot(curve.index, curve, label="_orthogonal" if place else orthogonal, **own)
    if ratio["ratio"].notna().any():
        ax.axhline(1.0, label=agree, **style.REFERENCE_LOOK)
    scales.log_axis(ax)
    name_lines(ax, colors | dict.fromkeys((agree, orthogonal), style.REFERENCE_LOOK), how)
    return ax


@of_lines
def integrated_norm(runs: pd.DataFrame, ax: Axes | None = None, **how: Unpack[Lines]) -> Axes:
    """The integrated norm by round: the sum of the norms of all server steps so far."""
    return curves(runs, ax, "integrated_norm", "sum of server steps (L2)", scales.linear_axis, how)


@of_lines
def client_spread(runs: pd.DataFrame, ax: Axes | None = None, **how: Unpack[Lines]) -> Axes:
    """The median norm of a client's update, and the band from the smallest to the largest.

    Over several seeds: the mean of the medians, the smallest and the largest of all.
    """
    low, middle, high = ClientNorms._fields
    axis = scales.log_axis
    return titled(curves(runs, ax, middle, "client update (L2)", axis, how, band=(low, high)))


def _prefix(runs: pd.DataFrame, layer: str | None) -> str:
    """What the columns of a layer begin with; nothing of the whole model."""
    if layer is None:
        return ""
    check_known("layer", layer, layers(runs))
    return f"layers.{layer}."
