"""A search over the values of a study: its figures, its table, and what is said about them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from fednnnn_plugin.report.groups import SYMBOLS
from fednnnn_plugin.report.runs import method_name
from fednnnn_plugin.report.study import Step, Study, read_study
from fednnnn_plugin.report.style import (
    BLUE,
    GRID,
    MUTED,
    VERMILION,
    drawn,
    figure_of,
    linear_axis,
    panels,
    styled,
)

# Name, unit, factor and digits of a metric; of a loss the lowest is best.
METRICS = {
    "best_accuracy": ("best validation accuracy", "%", 100.0, 2),
    "final_accuracy": ("final validation accuracy", "%", 100.0, 2),
    "final_loss": ("final validation loss", "nats", 1.0, 4),
}
# A grid that spans this ratio is laid out in equal ratios, not in equal steps.
WIDE_GRID = 30.0
WRITTEN_CELLS = 12  # along a side; a larger grid gets a colour bar


def write_figures(study: Study) -> None:
    """Write a study's figures as SVG, PDF and PNG into its ``figures/``."""
    (study.folder / "figures").mkdir(exist_ok=True)
    for name, _, ax in search_figures(study):
        for kind in ("svg", "pdf", "png"):
            (study.folder / "figures" / f"{name}.{kind}").write_bytes(drawn(ax, kind))


def search_figures(study: Study) -> Iterator[tuple[str, str, Axes]]:
    """Name, caption and picture for each step, or for each value of a step of three or more."""
    for step in study.plan.steps:
        for key in [None] if len(step.grid) <= 2 else step.grid:
            (ax,) = panels(5.0, 2.9, 1, 1)
            search(study, ax, step=step.name, key=key)
            yield f"{step.name}-{key}" if key else step.name, _caption(study, step, key), ax


@styled
def search(
    study: Study | str | Path, ax: Axes, *, step: str | None = None, key: str | None = None
) -> Axes:
    """The metric over the values of a grid search: a heat map over two, a line over one.

    Args:
        study: a study or its folder.
        ax: where to draw.
        step: the name of the step; the last one where None.
        key: the value for a line; where there are others, each point is the best over them.
    """
    found = study if isinstance(study, Study) else read_study(Path(study))
    chosen = next((s for s in found.plan.steps if s.name == step), found.plan.steps[-1])
    if len(chosen.grid) == 2 and key is None:
        return _heat_map(found, chosen, ax)
    return _line(found, chosen, key or next(iter(chosen.grid)), ax)


def headline(study: Study) -> str:
    """What was chosen, step by step, and what it reached."""
    name = METRICS[study.plan.metric][0].removeprefix("best ")
    parts = [
        f"{_at(step, best)} ({method_name(step.method)}: {name} {_shown(study, best['value'])})"
        for step in study.plan.steps
        if (best := study.best(step)) is not None
    ]
    none = study.warnings[0] if study.warnings else "No trial has finished yet."
    return f"Best: {'; '.join(parts)}." if parts else none


def _heat_map(study: Study, step: Step, ax: Axes) -> Axes:
    name, unit, factor, _ = METRICS[study.plan.metric]
    (first, across), (second, up) = ((key, sorted(grid)) for key, grid in step.grid.items())
    trials = study.of(step).assign(shown=lambda trials: trials["value"] * factor)
    cells = trials.pivot(index=second, columns=first, values="shown").reindex(up, columns=across)
    scale = colormaps["viridis_r" if unit == "nats" else "viridis"].with_extremes(bad=GRID)
    # A trial that diverged must not take all difference from the colours of the others.
    low, high = trials["shown"].quantile([0.0, 0.9] if unit == "nats" else [0.1, 1.0])
    mesh = ax.pcolormesh(cells.to_numpy(), cmap=scale, vmin=low, vmax=high)
    if max(cells.shape) > WRITTEN_CELLS:
        figure_of(ax).colorbar(mesh, ax=ax)
    else:
        digits = 3 if unit == "nats" else 1 if high - low >= 1.0 else 2
        for trial in trials.to_dict("records"):
            place = across.index(trial[first]) + 0.5, up.index(trial[second]) + 0.5
            if pd.isna(value := trial["shown"]):
                how = {"s": trial["state"], "color": MUTED, "fontsize": 5.5}
            else:  # not the page's ink and paper, which change places in the dark
                ink = "#000000" if sum(mesh.to_rgba(value)[:3]) > 1.4 else "#fefefe"
                how = {"s": f"{value:.{digits}f}", "color": ink, "fontsize": 7.0}
            ax.text(*place, ha="center", va="center", **how)
    if (best := study.best(step)) is not None:
        corner = (across.index(best[first]) + 0.04, up.index(best[second]) + 0.04)
        for color, width in (("#fefefe", 4.0), (VERMILION, 2.0)):
            ax.add_patch(
                Rectangle(corner, 0.92, 0.92, fill=False, edgecolor=color, linewidth=width)
            )
    for axis, side in ((ax.xaxis, across), (ax.yaxis, up)):
        every = math.ceil(len(side) / 12)
        axis.set_ticks(np.arange(0.5, len(side), every), [f"{v:g}" for v in side[::every]])
    ax.tick_params(length=0)
    ax.grid(visible=False)
    ax.set(xlabel=_label(first), ylabel=_label(second), title=f"{name} ({unit})")
    return ax


def _line(study: Study, step: Step, key: str, ax: Axes) -> Axes:
    name, unit, factor, _ = METRICS[study.plan.metric]
    trials = study.of(step)
    by_value = trials.dropna(subset=["value"]).groupby(key)["value"]
    points = (by_value.min() if unit == "nats" else by_value.max()) * factor
    ax.plot(points.index, points, "o-", color=BLUE, linewidth=1.4, markersize=3.5)
    if (best := study.best(step)) is not None:
        at = (best[key], best["value"] * factor)
        ax.plot(*at, "o", color=VERMILION, markersize=5)
        ax.plot(*at, "o", color=VERMILION, markersize=11, fillstyle="none", markeredgewidth=1.2)
    linear_axis(ax, highest=100.0 if unit == "%" else np.inf)
    for value in set(trials[key]) - set(points.index):  # no trial finished there
        ax.plot(value, 0.03, "x", color=MUTED, markersize=4, transform=ax.get_xaxis_transform())
    grid = sorted(step.grid[key])
    if grid[0] > 0.0 and grid[-1] / grid[0] >= WIDE_GRID:
        ax.set_xscale("log")
        ax.minorticks_off()
    every = math.ceil(len(grid) / 8)
    ax.set_xticks(grid[::every], [f"{value:g}" for value in grid[::every]])
    ax.set(xlabel=_label(key), ylabel=f"{name} ({unit})")
    return ax


def _caption(study: Study, step: Step, key: str | None) -> str:
    """Where the best lies, whether the grid is too narrow, what ran, and what judged it."""
    trials, best = study.of(step), study.best(step)
    said = ["No trial has finished yet."]
    if best is not None:
        so_far = " so far" * (len(trials) < len(step))
        said = [f"Best{so_far}, marked: {_at(step, best)}, {_shown(study, best['value'])}."]
        equal = trials[trials["value"] == best["value"]]
        for name, grid in step.grid.items():
            # An equally good value further inside does not ask for a wider grid.
            if len(grid) > 1 and equal[name].isin([min(grid), max(grid)]).all():
                end = "smallest" if best[name] == min(grid) else "largest"
                said.append(f"The best {SYMBOLS.get(name, name)} is the grid's {end}: widen it.")
    if key:
        said.append("Each point is the best over the other values.")
    counts = [f"{number} {state}" for state, number in trials["state"].value_counts().items()]
    counts += [f"{len(step) - len(trials)} not run yet"] * (len(trials) < len(step))
    share = f"{study.plan.validation * 100.0:.3g} %"
    return (
        f"{' '.join(said)} {len(step)} trials: {', '.join(counts)}; {step.rounds} rounds each. "
        f"{share} of the training images, held out, judged them; no test image was seen."
    )


def _shown(study: Study, value: float) -> str:
    _, unit, factor, digits = METRICS[study.plan.metric]
    return f"{value * factor:.{digits}f} {unit}"


def _at(step: Step, trial: pd.Series[float]) -> str:
    return ", ".join(f"{SYMBOLS.get(key, key)} {trial[key]:g}" for key in step.grid)


def _label(key: str) -> str:
    """The paper's symbol, and the key to write in a recipe or after ``--grid``."""
    return f"{SYMBOLS[key]} ({key})" if key in SYMBOLS else key
