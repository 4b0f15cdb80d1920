"""The figures of one condition on the page: accuracy curves and norm analysis (NWDA)."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.quantities import NORMS
from fednnnn_plugin.reporting import figures
from fednnnn_plugin.reporting.conditions import SINGLE_CLIENT
from fednnnn_plugin.reporting.runs import layers, own_metrics
from fednnnn_plugin.reporting.style import UNNAMED, leave_room, panels
from fednnnn_plugin.run_folder.results import CLASSES, CLIENTS

Panel = tuple[pd.DataFrame, Callable[..., Axes]]  # what is drawn, and how

PANELS_PER_ROW, LONG_NAME = 5, 26
# Inches: at one size of text, half of the page's width and all of it.
HALF, WHOLE, HEIGHT = 5.1, 10.2, 2.65
_EVALUATED = {
    "average": "the plain average of the clients' models",
    "served": "the served model",
    "midpoint": "the midpoint of the last two served models",
    "": "a model that the records do not name",
}
_AGREEMENT = (
    "1: all updates have the same direction. Dotted: N/E of orthogonal updates, as of unrelated "
    "clients; below it, updates oppose each other. The mark is 1/√m if all updates have the same "
    "length, and higher if a few are longer: a single long update raises N/E without agreement."
)
_NORMS = (
    "N is the norm of the mean update, E the mean norm of the clients' updates. If N is far below "
    "E, the updates cancel each other in the average. The server step is the change of the served "
    "model; the paper's section 5 and appendix plot its norm as N."
)
_SERVED = (
    "Where it is not the tested one, the served model only starts the next round; the paper calls "
    "it extremely poor."
)
_SPREAD = "Median of the clients' update norms; the band reaches from the smallest to the largest"
_WORST = (
    "Each client is tested on its own test part, and counts once: the mean of the tenth of the "
    "clients with the lowest accuracy."
)
_QUANTILES = "Median of the clients; the band leaves out the worst and the best tenth of them."
_DISTRIBUTION = "All clients after the last round, from the worst to the best, of all seeds."
_CLASSES = (
    "On the whole test part after the last round. The rarest class has the least weight in the "
    "average: its share in each client's samples, averaged as the clients' models are."
)
_LOSS = "Mean loss of a test: cross-entropy in nats unless the recipe names another loss."
_SECONDS = "Time of training, aggregation and evaluation on {}; of the rounds that all seeds have."
_MOVES = "The sum of the norms of all server steps so far."


@dataclass(eq=False)
class Chart:
    """A figure: its file's name, heading, how to read it, and what a reader hears instead."""

    name: str
    title: str
    caption: str
    alt: str
    wide: bool
    ax: Axes
    stem: str = ""  # of its files, once they are named


def condition_charts(
    runs: pd.DataFrame, references: pd.DataFrame, modules: Sequence[str], problems: list[str]
) -> Iterator[Chart]:
    """The figures of a condition's runs, without those of which no run recorded anything.

    ``references`` are single-client runs on the same data; without ``modules`` the norms of the
    last fully connected and the last convolutional one are shown. ``problems`` takes a line for
    each figure whose files are damaged.
    """
    alone = (runs["partition"] == SINGLE_CLIENT).all()  # N = E, and there is no spread
    both = runs if alone else pd.concat([references, runs])
    lines = [line for _, line in runs.groupby("label", sort=False)]
    lengths = runs.groupby(["label", "run"])["round"].max().groupby("label")
    several = bool((lengths.size() > 1).any())
    band = " Mean over seeds, with a band of one standard deviation." * several
    band += " Where a seed ends, the others continue alone." * bool((lengths.nunique() > 1).any())
    grey = " Grey: one client with all data." * (len(both) > len(runs))
    tested = _evaluated(runs) + band

    def norms(module: str | None) -> list[Panel]:
        return [(both, partial(figures.norms, norm=norm, layer=module)) for norm in NORMS]

    yield from _chart("accuracy", "Accuracy", tested, (runs, figures.accuracy))
    if not alone:
        title = "Do the clients agree? N/E"
        yield from _chart("agreement", title, _AGREEMENT + band, (runs, figures.agreement))
    title = "N, E and server step"
    yield from _chart("norms", f"{title}: whole model", _NORMS + grey + band, *norms(None))
    recorded = layers(runs.dropna(axis=1, how="all"))  # other data have other models
    for module in [m for m in modules if m in recorded] or _paper_s(recorded):
        caption = f"The same for the weight and bias of {module}.{grey}{band}"
        yield from _chart(f"norms-{module}", f"{title}: {module}", caption, *norms(module))
    yield from _chart("loss", "Loss", _LOSS + band, (runs, figures.loss))
    if not alone:
        means = " of all seeds, and the line is the mean of their medians." * several or "."
        spread = partial(figures.client_spread, names=False)
        title, panels = "Spread of the clients' updates", [(line, spread) for line in lines]
        yield from _chart("client-norms", title, _SPREAD + means, *panels)
    moved = (both, figures.integrated_norm)
    yield from _chart("integrated-norm", "Integrated norm", _MOVES + grey + band, moved)
    machines = list(runs["device"].dropna().unique())
    if len(machines) < 2:  # of two machines, times are not compared
        caption = _SECONDS.format(*machines or ["a machine that is not on record"]) + band
        timed = (runs, figures.accuracy_by_seconds)
        yield from _chart("seconds", "Accuracy by time", caption, timed)
    if _recorded(runs, "served_test_acc"):
        evaluated = partial(figures.accuracy, title="evaluated model")
        served = partial(figures.accuracy, column="served_test_acc", title="served model")
        title, caption = "Evaluated model and served model", f"{_evaluated(runs)} {_SERVED}{band}"
        yield from _chart("served", title, caption, (runs, evaluated), (runs, served))
    yield from _by_part(runs, lines, band, problems)
    for name in own_metrics(runs).values():
        caption = "As measured by the runs' own code." + band
        measured = partial(figures.metric, name=name)
        yield from _chart(f"metric-{name}", name, caption, (runs, measured))


def _by_part(
    runs: pd.DataFrame, lines: Sequence[pd.DataFrame], band: str, problems: list[str]
) -> Iterator[Chart]:
    """The figures of results by client and by class, where there are some."""

    def of_files(*chart: Any) -> Iterator[Chart]:
        try:
            yield from _chart(*chart)
        except UserError as error:
            if str(error) not in problems:  # of two figures
                problems.append(str(error))

    if _recorded(runs, "client_acc.worst_10"):
        worst = partial(figures.accuracy, column="client_acc.worst_10")
        title = "Accuracy on the worst tenth of the clients"
        yield from _chart("worst-clients", title, _WORST + band, (runs, worst))
    if by_client := [line for line in lines if _kept(line, "client_acc.mean", CLIENTS)]:
        tenths = partial(figures.client_quantiles, names=False)
        panels = [(line, tenths) for line in by_client]
        yield from of_files("client-quantiles", "Accuracy by client", _QUANTILES, *panels)
        title, ends = "Accuracy by client at the end", (runs, figures.client_distribution)
        yield from of_files("client-distribution", title, _DISTRIBUTION, ends)
    if _kept(runs, "class_acc.mean", CLASSES):
        title, ends = "Accuracy by class at the end", (runs, figures.class_accuracy)
        yield from of_files("class-accuracy", title, _CLASSES, ends)


def _kept(runs: pd.DataFrame, column: str, file: str) -> bool:
    """Whether a result is on record, and at hand are the files that it is the summary of."""
    folders = runs["folder"].unique()
    return _recorded(runs, column) and any(Path(folder, file).is_file() for folder in folders)


def _recorded(runs: pd.DataFrame, column: str) -> bool:
    return column in runs and bool(runs[column].notna().any())


def _paper_s(modules: list[str]) -> list[str]:
    """The last fully connected and the last convolutional module: on CIFAR-10 the paper's."""
    alike = ([m for m in modules if m.rpartition(".")[2].startswith(k)] for k in ("fc", "conv"))
    return [found[-1] for found in alike if found]


def _chart(name: str, title: str, caption: str, *shown: Panel) -> Iterator[Chart]:
    """Panels that share their y axis, the lines named in the last; nothing without a line."""
    columns = min(len(shown), PANELS_PER_ROW)
    rows = math.ceil(len(shown) / columns)
    longest = max(runs["label"].str.len().max() for runs, _ in shown)
    wide = columns > 2 or bool(longest > LONG_NAME)
    axes = panels(WHOLE if wide else HALF, HEIGHT * rows, rows, columns, sharey=True)
    ends = []
    for index, ((runs, draw), ax) in enumerate(zip(shown, axes, strict=False)):
        draw(runs, ax, **({} if index == len(shown) - 1 else {"names": False}))
        if index % columns:
            ax.set_ylabel("")
        for line in ax.lines:
            if not UNNAMED.fullmatch(str(line.get_label())):
                value = f"{np.asarray(line.get_ydata())[-1]:.3g}"
                ends.append(f"{ax.get_title(loc='left')} {line.get_label()} {value}".strip())
    leave_room(axes, (text.get_text() for text in axes[len(shown) - 1].texts))
    for ax in axes[len(shown) :]:
        ax.set_visible(False)
    if axes[0].get_yscale() == "function":
        caption += " The scale is logarithmic in the error."
    alt = f"Line chart by {axes[0].get_xlabel()}: {title}. Last values: {'; '.join(ends)}."
    if ends:
        yield Chart(name, title, caption, alt, wide, axes[0])


def _evaluated(runs: pd.DataFrame) -> str:
    """Which model the accuracies are of, as the records say."""
    named = runs.get("evaluated", pd.Series("", runs.index)).replace("", None)
    recorded = named.groupby(runs["run"]).transform("last").fillna("")  # a run tests one model
    methods = runs["label"].groupby(recorded, sort=False).unique()
    names = [_EVALUATED.get(str(model), str(model)) for model in methods.index]
    if len(names) > 1:
        names = [f"{name} ({', '.join(of)})" for name, of in zip(names, methods, strict=True)]
    return f"Tested: {'; '.join(names)}."
