"""The figures of one condition on the page: accuracy curves and norm analysis (NWDA)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from fednnnn_plugin.quantities import NORMS
from fednnnn_plugin.reporting import figures
from fednnnn_plugin.reporting.conditions import SINGLE_CLIENT
from fednnnn_plugin.reporting.runs import layers
from fednnnn_plugin.reporting.style import UNNAMED, leave_room, panels

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
    "model; the paper's appendix plots its norm as N."
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
    runs: pd.DataFrame, references: pd.DataFrame, modules: Sequence[str]
) -> Iterator[Chart]:
    """The figures of a condition's runs, without those of which no run recorded anything.

    ``references`` are single-client runs on the same data; without ``modules`` the norms of the
    last fully connected and the last convolutional one are shown.
    """
    alone = (runs["partition"] == SINGLE_CLIENT).all()  # N = E, and there is no spread
    both = runs if alone else pd.concat([references, runs])
    lengths = runs.groupby(["label", "run"])["round"].max().groupby("label")
    several = bool((lengths.size() > 1).any())
    band = " Mean over seeds, with a band of one standard deviation." * several
    band += " Where a seed ends, the others continue alone." * bool((lengths.nunique() > 1).any())
    grey = " Grey: one client with all data." * (len(both) > len(runs))
    tested = _evaluated(runs)
    spread = _SPREAD + (
        " of all seeds, and the line is the mean of their medians." * several or "."
    )

    def norms(module: str | None) -> list[Panel]:
        return [(both, partial(figures.norms, norm=norm, layer=module)) for norm in NORMS]

    plans: list[tuple[str, str, str, list[Panel]]] = [
        ("accuracy", "Accuracy", tested + band, [(runs, figures.accuracy)]),
        ("agreement", "Do the clients agree? N/E", _AGREEMENT + band, [(runs, figures.agreement)]),
        ("norms", "N, E and server step: whole model", _NORMS + grey + band, norms(None)),
    ]
    recorded = layers(runs.dropna(axis=1, how="all"))  # other data have other models
    for module in [m for m in modules if m in recorded] or _paper_s(recorded):
        title = f"N, E and server step: {module}"
        caption = f"The same for the weight and bias of {module}.{grey}{band}"
        plans.append((f"norms-{module}", title, caption, norms(module)))
    by_label = runs.groupby("label", sort=False)
    own: list[Panel] = [(part, partial(figures.client_spread, names=False)) for _, part in by_label]
    plans += [
        ("loss", "Loss", _LOSS + band, [(runs, figures.loss)]),
        ("client-norms", "Spread of the clients' updates", spread, own),
        ("integrated-norm", "Integrated norm", _MOVES + grey + band,
         [(both, figures.integrated_norm)]),
    ]  # fmt: skip
    machines = runs["device"].dropna().unique()
    if len(machines) < 2:  # of two machines, times are not compared
        where = machines[0] if len(machines) else "a machine that is not on record"
        caption = (
            f"Time of training, aggregation and evaluation on {where}; of the rounds that all "
        )
        plans.append(("seconds", "Accuracy by time", f"{caption}seeds have.{band}",
                      [(runs, figures.accuracy_by_seconds)]))  # fmt: skip
    if _recorded(runs, "served_test_acc"):
        evaluated = partial(figures.accuracy, title="evaluated model")
        served = partial(figures.accuracy, column="served_test_acc", title="served model")
        title, caption = "Evaluated model and served model", f"{tested} {_SERVED}{band}"
        plans.append(("served", title, caption, [(runs, evaluated), (runs, served)]))
    plans += _by_part(runs, own, band)
    for column in runs.filter(like="test_metrics."):
        name = column.partition(".")[2]
        draw = partial(figures.metric, name=name)
        caption = "As measured by the runs' own code." + band
        plans.append((f"metric-{name}", name, caption, [(runs, draw)]))
    for name, title, caption, shown in plans:
        chart = _chart(name, title, caption, shown)
        if chart and not (alone and name in ("agreement", "client-norms")):
            yield chart


def _by_part(
    runs: pd.DataFrame, own: list[Panel], band: str
) -> Iterator[tuple[str, str, str, list[Panel]]]:
    """The figures of results by client and by class, where there are some."""
    if _recorded(runs, "client_acc.worst_10"):
        worst = partial(figures.accuracy, column="client_acc.worst_10")
        title = "Accuracy on the worst tenth of the clients"
        yield "worst-clients", title, _WORST + band, [(runs, worst)]
        drawn = partial(figures.client_quantiles, names=False)
        each: list[Panel] = [(p, drawn) for p, _ in own if _recorded(p, "client_acc.mean")]
        yield "client-quantiles", "Accuracy by client", _QUANTILES, each
        ends: list[Panel] = [(runs, figures.client_distribution)]
        yield "client-distribution", "Accuracy by client at the end", _DISTRIBUTION, ends
    if _recorded(runs, "class_acc.mean"):
        classes: list[Panel] = [(runs, figures.class_accuracy)]
        yield "class-accuracy", "Accuracy by class at the end", _CLASSES, classes


def _recorded(runs: pd.DataFrame, column: str) -> bool:
    return column in runs and bool(runs[column].notna().any())


def _paper_s(modules: list[str]) -> list[str]:
    """The last fully connected and the last convolutional module: on CIFAR-10 the paper's."""
    alike = ([m for m in modules if m.rpartition(".")[2].startswith(k)] for k in ("fc", "conv"))
    return [found[-1] for found in alike if found]


def _chart(name: str, title: str, caption: str, shown: Sequence[Panel]) -> Chart | None:
    """Panels that share their y axis, the lines named in the last; None without a line."""
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
    return Chart(name, title, caption, alt, wide, axes[0]) if ends else None


def _evaluated(runs: pd.DataFrame) -> str:
    """Which model the accuracies are of, as the records say."""
    named = runs.get("evaluated", pd.Series("", runs.index)).replace("", None)
    recorded = named.groupby(runs["run"]).transform("last").fillna("")  # a run tests one model
    methods = runs["label"].groupby(recorded, sort=False).unique()
    names = [_EVALUATED.get(str(model), str(model)) for model in methods.index]
    if len(names) > 1:
        names = [f"{name} ({', '.join(of)})" for name, of in zip(names, methods, strict=True)]
    return f"Tested: {'; '.join(names)}."
