"""The figures of one condition on the page: accuracy curves and norm analysis (NWDA)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fednnnn_plugin.report import figures
from fednnnn_plugin.report.groups import SINGLE_CLIENT
from fednnnn_plugin.report.runs import layers
from fednnnn_plugin.report.style import STYLE, number_text

Draw = Callable[..., Axes]
PANELS_PER_ROW = 5
# Inches: at one size of text, half of the page's width and all of it.
HALF, WHOLE, HEIGHT = 5.1, 10.2, 2.65
_EVALUATED = {
    "average": "the plain average of the clients' models",
    "served": "the served model",
    "midpoint": "the midpoint of the last two served models",
}


@dataclass(frozen=True, eq=False)
class Chart:
    """A figure: its file's name, heading, how to read it, and what a reader hears instead."""

    name: str
    title: str
    caption: str
    alt: str
    wide: bool
    figure: Figure


def condition_charts(
    runs: pd.DataFrame, references: pd.DataFrame, modules: Sequence[str]
) -> Iterator[Chart]:
    """The figures of a condition, without those of which no run recorded anything.

    Args:
        runs: of the condition, arranged.
        references: single-client runs on the same data; may be none.
        modules: whose norms to show; where empty, the last fully connected and convolutional ones.
    """
    alone = (runs["dealt"] == SINGLE_CLIENT).all()  # N = E, and there is no spread
    both = runs if alone else pd.concat([references, runs])
    band = ""
    if (runs.groupby("label")["run"].nunique() > 1).any():
        band = " Mean over seeds, with a band of one standard deviation."
    chart = partial(_chart, band=band)
    by_error = " The axis goes by the logarithm of the error." * (runs["test_acc"].max() > 0.95)
    accuracy = f"{_evaluated(runs)}{by_error}"
    yield from chart(runs, "accuracy", "Accuracy", accuracy, [figures.accuracy], "test_acc")
    if not alone:
        yield from chart(
            runs, "agreement", "Do the clients agree? N/E",
            "1: all clients move alike; 1/√m: their updates are orthogonal, as if unrelated; "
            "below: they undo each other.", [figures.agreement], "mean_update_norm",
        )  # fmt: skip
    for module in (None, *(modules or _shown_layers(runs))):
        yield from _norms(both, module, chart)
    yield from chart(
        runs, "seconds", "Accuracy by time", "Training, aggregation and evaluation.",
        [figures.accuracy_by_seconds], "test_acc", "seconds.train",
    )  # fmt: skip
    yield from chart(runs, "loss", "Loss", "Mean cross-entropy.", [figures.loss], "test_loss")
    if not alone:
        panels = [partial(_spread_of, label) for label in dict.fromkeys(runs["label"])]
        yield from _chart(
            runs, "client-norms", "Spread of the clients' updates",
            "Median of the clients' update norms; the band reaches from the smallest to the "
            "largest" + (" of all seeds; the line is the mean of their medians." if band else "."),
            panels, "client_norm_median",
        )  # fmt: skip
    grey = " Grey: one client that holds all data." * (len(references) > 0 and not alone)
    yield from chart(
        both, "integrated-norm", "Integrated norm",
        "The way that the served model has gone so far: the sum of its moves." + grey,
        [figures.integrated_norm], "integrated_norm",
    )  # fmt: skip
    yield from chart(
        runs, "served", "Evaluated model and served model",
        "The served model only starts the next round; the paper calls its own accuracy extremely "
        "poor.", [figures.accuracy, partial(figures.accuracy, model="served")], "served_test_acc",
    )  # fmt: skip
    for column in [str(c) for c in runs if str(c).startswith("test_metrics.")]:
        name = column.removeprefix("test_metrics.")
        draw = [partial(figures.metric, name=name)]
        yield from chart(runs, f"metric-{name}", name, "As the runs' trainer gave it.", draw, column)


def _norms(runs: pd.DataFrame, module: str | None, chart: Callable[..., Iterator[Chart]]) -> Iterator[Chart]:
    caption = (
        "N is the norm of the clients' mean update, E the mean norm of their updates; N far below "
        "E says that averaging cancels them out. The server move is how far the served model went, "
        "which the paper's appendix plots as N."
    )
    prefix, name, where = "", "norms", "whole model"
    if module is not None:
        prefix, name, where = f"layers.{module}.", f"norms-{module}", module
        caption = f"The same for the weight and bias of {module} alone."
        if module in ("fc3", "conv32") and (runs["dataset"] == "cifar10").all():
            caption += " The paper shows it too."
        if module in ("fc2", "conv2") and (runs["dataset"] == "mnist").all():
            caption += " The paper does not name the layer that it shows for MNIST."
    panels = [partial(figures.norms, norm=norm, layer=module) for norm in figures.NORMS]
    title = f"N, E and server move: {where}"
    yield from chart(runs, name, title, caption, panels, f"{prefix}mean_update_norm")


def _chart(
    runs: pd.DataFrame, name: str, title: str, caption: str, panels: Sequence[Draw],
    *needs: str, band: str = "",
) -> Iterator[Chart]:  # fmt: skip
    """A figure of panels that share their y axis, where every needed column has a number."""
    if any(column not in runs or runs[column].isna().all() for column in needs):
        return
    columns = min(len(panels), PANELS_PER_ROW)
    rows = -(-len(panels) // PANELS_PER_ROW)
    wide = columns > 2 or runs["label"].str.len().max() > 26
    size = (WHOLE if wide else HALF, HEIGHT * rows)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(rows, columns, sharey=True, squeeze=False).flat
    for index, (draw, ax) in enumerate(zip(panels, grid, strict=False)):
        draw(runs, ax, names=index == len(panels) - 1)
        if index % columns:
            ax.set_ylabel("")
    for ax in list(grid)[len(panels):]:
        ax.set_visible(False)
    yield Chart(name, title, caption + band, _alt(title, figure), wide, figure)


def _spread_of(label: str, runs: pd.DataFrame, ax: Axes, *, names: bool) -> Axes:
    figures.client_spread(runs[runs["label"] == label], ax, names=False)
    ax.set_title(label if len(label) < 28 else label[:27] + "…", fontsize=8.0)
    return ax


def _alt(title: str, figure: Figure) -> str:
    """The last value of every line in words."""
    parts = []
    for ax in figure.axes:
        for line in ax.lines:
            if not str(line.get_label()).startswith("_"):
                value = number_text(float(f"{float(line.get_ydata()[-1]):.3g}"))
                parts.append(f"{ax.get_title(loc='left')} {line.get_label()} {value}".strip())
    return f"Line chart by {figure.axes[0].get_xlabel()}: {title}. Last values: {'; '.join(parts)}."


def _shown_layers(runs: pd.DataFrame) -> list[str]:
    """The last fully connected and the last convolutional module by name.

    On CIFAR-10 these are the paper's fc3 and conv32.
    """
    modules = layers(runs)
    alike = ([m for m in modules if m.rpartition(".")[2].startswith(k)] for k in ("fc", "conv"))
    return [found[-1] for found in alike if found]


def _evaluated(runs: pd.DataFrame) -> str:
    """Which model the accuracies are of, as the records say."""
    if "evaluated" not in runs or runs["evaluated"].isna().all():
        return "The records do not say which model was tested."
    by_model: dict[str, list[str]] = {}
    for (label, model), _ in runs.dropna(subset=["evaluated"]).groupby(["label", "evaluated"], sort=False):
        by_model.setdefault(_EVALUATED.get(model, str(model)), []).append(label)
    if len(by_model) == 1:
        return f"Tested: {next(iter(by_model))}."
    said = [f"{model} ({', '.join(labels)})" for model, labels in by_model.items()]
    return f"Tested: {'; '.join(said)}."
