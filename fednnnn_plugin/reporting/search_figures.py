"""A search over the values of a study: its figures, and what is said about them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from fednnnn_plugin.errors import check_known
from fednnnn_plugin.files import write_atomically
from fednnnn_plugin.reporting import scales, style
from fednnnn_plugin.reporting.conditions import SYMBOLS, value_text
from fednnnn_plugin.reporting.runs import method_name
from fednnnn_plugin.reporting.study import Plan, Step, Study, read_study

NAMES = {
    "best_accuracy": "best validation accuracy",
    "final_accuracy": "final validation accuracy",
    "final_loss": "final validation loss",
    "worst_10": "final accuracy of the worst 10 % of clients",
}
_NO_TRIAL = "No trial has finished yet."
# A grid that spans this ratio is laid out in equal ratios, not in equal steps.
WIDE_GRID = 30.0
WRITTEN_CELLS = 12  # along a side; a larger grid gets a colour bar


def write_figures(study: Study) -> None:
    """Write a study's figures as SVG, PDF and PNG into its ``figures/``."""
    (study.folder / "figures").mkdir(exist_ok=True)
    for name, _, ax in search_figures(study):
        for kind in ("svg", "pdf", "png"):
            path = study.folder / "figures" / f"{name}.{kind}"
            write_atomically(path, style.drawn(ax, kind))


def search_figures(study: Study) -> Iterator[tuple[str, str, Axes]]:
    """Name, caption and picture for each step."""
    for step in study.plan.steps:
        (ax,) = style.panels(5.0, 2.9, 1, 1)
        yield step.name, _caption(study, step), search(study, ax, step=step.name)


@style.styled
def search(study: Study | str | Path, ax: Axes | None = None, *, step: str | None = None) -> Axes:
    """The metric over the values of a grid search: a line over one, a heat map over two.

    Of three or more values the first two are the axes; each cell is the best over the others.

    Args:
        study: a study or its folder.
        ax: where to draw.
        step: the name of the step; the last one where None.
    """
    found = study if isinstance(study, Study) else read_study(Path(study))
    steps = {each.name: each for each in found.plan.steps}
    if step is not None:
        check_known("step", step, steps)
    chosen = steps[step or found.plan.steps[-1].name]
    ax = style.axes(ax)
    name, unit, factor, _ = _metric(found.plan)
    scaled = found.of(chosen).assign(value=lambda trials: trials["value"] * factor)
    ranked = scaled.sort_values("value", ascending=found.plan.lowest, kind="stable")
    trials = ranked.drop_duplicates(list(chosen.grid)[:2]).sort_index()
    draw = _line if len(chosen.grid) == 1 else partial(_heat_map, lowest=found.plan.lowest)
    draw(ax, chosen, trials, found.best(chosen), f"{name} ({unit})" if unit else name)
    return ax


def headline(study: Study) -> str:
    """What was chosen, step by step, and what it reached."""
    name = _metric(study.plan)[0].removeprefix("best ")
    parts = [
        f"{_at(step, best)} ({method_name(step.method)}: {name} {_shown(study, best['value'])})"
        for step in study.plan.steps
        if (best := study.best(step)) is not None
    ]
    return f"Best: {'; '.join(parts)}." if parts else _NO_TRIAL


def _heat_map(
    ax: Axes,
    step: Step,
    trials: pd.DataFrame,
    best: pd.Series[float] | None,
    title: str,
    *,
    lowest: bool,
) -> None:
    (first, across), (second, up) = ((key, sorted(step.grid[key])) for key in list(step.grid)[:2])
    cells = trials.pivot(index=second, columns=first, values="value").reindex(up, columns=across)
    scale = colormaps["viridis_r" if lowest else "viridis"].with_extremes(bad=style.GRID)
    # A trial that diverged must not take all difference from the colours of the others.
    low, high = trials["value"].quantile([0.0, 0.9] if lowest else [0.1, 1.0])
    mesh = ax.pcolormesh(cells.to_numpy(), cmap=scale, vmin=low, vmax=high)
    if max(cells.shape) > WRITTEN_CELLS:
        style.figure_of(ax).colorbar(mesh, ax=ax)
    else:
        digits = ".3g" if "%" not in title else ".1f" if high - low >= 1.0 else ".2f"
        for trial in trials.to_dict("records"):
            text, color, size = trial["state"], style.MUTED, 5.5
            if not pd.isna(value := trial["value"]):
                text, size = f"{value:{digits}}", 7.0
                color = style.INK if sum(mesh.to_rgba(value)[:3]) > 1.4 else style.PAPER
            place = across.index(trial[first]) + 0.5, up.index(trial[second]) + 0.5
            ax.text(*place, text, ha="center", va="center", color=color, fontsize=size)
    if best is not None:
        corner = (across.index(best[first]) + 0.04, up.index(best[second]) + 0.04)
        for color, width in ((style.PAPER, 4.0), (style.VERMILION, 2.0)):
            ax.add_patch(Rectangle(corner, 0.92, 0.92, fill=False, edgecolor=color, lw=width))
    for axis, side in ((ax.xaxis, across), (ax.yaxis, up)):
        every = math.ceil(len(side) / 12)
        axis.set_ticks(np.arange(0.5, len(side), every), [*map(value_text, side[::every])])
    ax.tick_params(length=0)
    ax.grid(visible=False)
    ax.set(xlabel=_label(first), ylabel=_label(second), title=title)


def _line(
    ax: Axes, step: Step, trials: pd.DataFrame, best: pd.Series[float] | None, title: str
) -> None:
    (key,) = step.grid
    points = trials.dropna(subset=["value"]).set_index(key)["value"].sort_index()
    ax.plot(points.index, points, "o-", color=style.BLUE, linewidth=1.4, markersize=3.5)
    if best is not None:
        at = (best[key], points[best[key]])
        ax.plot(*at, "o", color=style.VERMILION, markersize=5)
        ax.plot(*at, "o", color=style.VERMILION, markersize=11, fillstyle="none")
    scales.linear_axis(ax, highest=100.0 if "%" in title else math.inf)
    grid = sorted(step.grid[key])
    if grid[0] > 0.0 and grid[-1] / grid[0] >= WIDE_GRID:
        ax.set_xscale("log")
        ax.minorticks_off()
    every = math.ceil(len(grid) / 8)
    ax.set_xticks(grid[::every], [*map(value_text, grid[::every])])
    ax.set(xlabel=_label(key), ylabel=title)


def _caption(study: Study, step: Step) -> str:
    """Where the best lies, whether the grid is too narrow, what ran, and what judged it."""
    best = study.best(step)
    said = _NO_TRIAL
    if best is not None:
        so_far = " so far" * (len(study.of(step)) < len(step))
        said = f"Best{so_far}, marked: {_at(step, best)}, {_shown(study, best['value'])}."
        grids = ((SYMBOLS.get(key, key), best[key], grid) for key, grid in step.grid.items())
        ends = [key for key, at, grid in grids if len(grid) > 1 and at in (min(grid), max(grid))]
        said += f" At an end of its grid: {', '.join(ends)}; widen it." * bool(ends)
    others = " Each cell is the best over the other values." * (len(step.grid) > 2)
    seeds = f", the mean over {len(study.plan.seeds)} seeds" * bool(study.plan.seeds)
    return (
        f"{said}{others} {study.counts([step])}; {step.rounds} rounds each. They were judged on "
        f"{study.plan.judged_on}{seeds}; no test sample was seen."
    )


def _shown(study: Study, value: float) -> str:
    _, unit, factor, digits = _metric(study.plan)
    return f"{value * factor:.{digits}f} {unit}".rstrip()


def _metric(plan: Plan) -> tuple[str, str, float, int]:
    """Name, unit, factor and digits of what judges a study."""
    measure = f"{plan.metric.removesuffix('_metric')} validation {plan.measure}"
    name = NAMES.get(plan.metric, measure)
    return (name, "%", 100.0, 2) if plan.of_accuracy else (name, "", 1.0, 4)


def _at(step: Step, trial: pd.Series[float]) -> str:
    return ", ".join(f"{SYMBOLS.get(key, key)} {value_text(trial[key])}" for key in step.grid)


def _label(key: str) -> str:
    """The paper's symbol, and the key to write in a recipe or after ``--grid``."""
    return f"{SYMBOLS[key]} ({key})" if key in SYMBOLS else key
