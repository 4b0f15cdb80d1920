"""The figures of one condition on the page: accuracy curves and norm analysis (NWDA)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from fednnnn_plugin.report import figures
from fednnnn_plugin.report.groups import SINGLE_CLIENT
from fednnnn_plugin.report.runs import layers
from fednnnn_plugin.report.style import INK, STYLE, number_text, panels

Draws = Sequence[Callable[..., Axes]]
_Plan = tuple[pd.DataFrame, str, str, str, Draws, str]

PANELS_PER_ROW = 5
# Inches: at one size of text, half of the page's width and all of it.
HALF, WHOLE, HEIGHT = 5.1, 10.2, 2.65
LONG_NAME = 26
_EVALUATED = {
    "average": "the plain average of the clients' models",
    "served": "the served model",
    "midpoint": "the midpoint of the last two served models",
}
_AGREEMENT = (
    "1: all clients move alike; 1/√m: their updates are orthogonal, as if unrelated; below: they "
    "undo each other."
)
_NORMS = (
    "N is the norm of the clients' mean update, E the mean norm of their updates; N far below E "
    "says that averaging cancels them out. The server move is how far the served model went, which "
    "the paper's appendix plots as N."
)
_SERVED = "The served model only starts the next round; the paper calls it extremely poor."
_SPREAD = "Median of the clients' update norms; the band reaches from the smallest to the largest"


@dataclass(frozen=True, eq=False)
class Chart:
    """A figure: its file's name, heading, how to read it, and what a reader hears instead."""

    name: str
    title: str
    caption: str
    alt: str
    wide: bool
    axes: list[Axes]


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
    seeds = (runs.groupby("label")["run"].nunique() > 1).any()
    band = " Mean over seeds, with a band of one standard deviation." * bool(seeds)
    grey = " Grey: one client that holds all data." * (len(both) > len(runs))
    error = " The axis goes by the logarithm of the error." * bool(runs["test_acc"].max() > 0.95)
    tested = _evaluated(runs)
    spread = _SPREAD + (" of all seeds, the line is the mean of their medians." if seeds else ".")
    moves = f"The way that the served model has gone so far: the sum of its moves.{grey}{band}"
    accuracy, served = figures.accuracy, partial(figures.accuracy, column="served_test_acc")
    labels = [partial(_spread_of, label) for label in dict.fromkeys(runs["label"])]
    found: list[_Plan] = [
        (runs, "accuracy", "Accuracy", tested + error + band, [accuracy], "test_acc"),
        (runs, "agreement", "Do the clients agree? N/E", _AGREEMENT + band,
         [figures.agreement] * (not alone), "mean_update_norm"),
        *(_norms(both, module, grey + band) for module in (None, *(modules or shown_layers(runs)))),
        (runs, "seconds", "Accuracy by time", "Training, aggregation and evaluation." + band,
         [figures.accuracy_by_seconds] * bool(runs["test_acc"].notna().any()), "seconds.train"),
        (runs, "loss", "Loss", "Mean cross-entropy." + band, [figures.loss], "test_loss"),
        (runs, "client-norms", "Spread of the clients' updates", spread, labels * (not alone),
         "client_norm_median"),
        (both, "integrated-norm", "Integrated norm", moves, [figures.integrated_norm],
         "integrated_norm"),
        (runs, "served", "Evaluated model and served model", f"{tested} {_SERVED}{band}",
         [accuracy, served], "served_test_acc"),
        *(_metric(runs, str(c), band) for c in runs if str(c).startswith("test_metrics.")),
    ]  # fmt: skip
    for shown, name, title, caption, draws, needs in found:
        if draws and needs in shown and shown[needs].notna().any():
            columns = min(len(draws), PANELS_PER_ROW)
            wide = columns > 2 or bool(runs["label"].str.len().max() > LONG_NAME)
            axes = _draw(shown, draws, columns, WHOLE if wide else HALF)
            yield Chart(name, title, caption, _alt(title, axes), wide, axes)


def shown_layers(runs: pd.DataFrame) -> list[str]:
    """The last fully connected and the last convolutional module: on CIFAR-10 the paper's."""
    modules = layers(runs)
    alike = ([m for m in modules if m.rpartition(".")[2].startswith(k)] for k in ("fc", "conv"))
    return [found[-1] for found in alike if found]


def _norms(runs: pd.DataFrame, module: str | None, band: str) -> _Plan:
    draws = [partial(figures.norms, norm=norm, layer=module) for norm in figures.NORMS]
    if module is None:
        title = "N, E and server move: whole model"
        return runs, "norms", title, _NORMS + band, draws, "mean_update_norm"
    data = set(runs.get("dataset", ()))
    why = " The paper shows it too." * (data == {"cifar10"} and module in ("fc3", "conv32"))
    if data == {"mnist"} and module in ("fc2", "conv2"):
        why = " The paper does not name the layer that it shows for MNIST; this is the last."
    caption = f"The same for the weight and bias of {module} alone.{why}{band}"
    needs = f"layers.{module}.mean_update_norm"
    return runs, f"norms-{module}", f"N, E and server move: {module}", caption, draws, needs


def _metric(runs: pd.DataFrame, column: str, band: str) -> _Plan:
    name = column.partition(".")[2]
    draw = partial(figures.metric, name=name)
    return runs, f"metric-{name}", name, f"As the runs' own trainer gave it.{band}", [draw], column


def _draw(runs: pd.DataFrame, draws: Draws, columns: int, width: float) -> list[Axes]:
    """Panels that share their y axis, the lines named in the last."""
    rows = -(-len(draws) // columns)
    axes = panels(width, HEIGHT * rows, rows, columns, sharey=True)
    for index, (draw, ax) in enumerate(zip(draws, axes, strict=False)):
        draw(runs, ax, names=index == len(draws) - 1)
        if index % columns:
            ax.set_ylabel("")
    for ax in axes[len(draws) :]:
        ax.set_visible(False)
    return axes[: len(draws)]


def _spread_of(label: str, runs: pd.DataFrame, ax: Axes, *, names: bool) -> Axes:
    figures.client_spread(runs[runs["label"] == label], ax, names=False)
    short = label if len(label) <= LONG_NAME else f"{label[:LONG_NAME]}…"
    ax.set_title(short, loc="left", fontsize=STYLE["axes.titlesize"], color=INK)
    return ax


def _alt(title: str, axes: list[Axes]) -> str:
    """The last value of every line in words."""
    parts = []
    for ax in axes:
        for line in ax.lines:
            if not str(line.get_label()).startswith("_"):
                value = number_text(float(f"{np.asarray(line.get_ydata())[-1]:.3g}"))
                parts.append(f"{ax.get_title(loc='left')} {line.get_label()} {value}".strip())
    return f"Line chart by {axes[0].get_xlabel()}: {title}. Last values: {'; '.join(parts)}."


def _evaluated(runs: pd.DataFrame) -> str:
    """Which model the accuracies are of, as the records say."""
    recorded = runs.get("evaluated", pd.Series("", runs.index)).replace("", None)
    by_model = runs["label"].groupby(recorded, sort=False).unique()
    names = {model: _EVALUATED.get(str(model), str(model)) for model in by_model.index}
    if len(names) < 2:
        said = next(iter(names.values()), "the records do not say which model")
        return f"Tested: {said}."
    said = "; ".join(f"{names[model]} ({', '.join(by_model[model])})" for model in names)
    return f"Tested: {said}."
