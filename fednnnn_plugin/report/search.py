"""A search over the values of a study: its figures, its table, and what is said about them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.patches import Rectangle

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.report.groups import SYMBOLS
from fednnnn_plugin.report.runs import method_name
from fednnnn_plugin.report.study import Step, Study, read_study
from fednnnn_plugin.report.style import (
    BLUE,
    GRID,
    MUTED,
    VERMILION,
    figure_of,
    linear_axis,
    number_text,
    panels,
    save,
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


def write_figures(folder: Path) -> None:
    """Write a study's figures as SVG, PDF and PNG into its ``figures/``."""
    try:
        study = read_study(folder)
    except UserError as error:
        logging.getLogger(__name__).warning("%s", error)
        return
    for name, _, ax in search_figures(study):
        for kind in ("svg", "pdf", "png"):
            save(ax, folder / "figures" / f"{name}.{kind}")


def search_figures(study: Study) -> Iterator[tuple[str, str, Axes]]:
    """Name, caption and picture for each step, or for each value of a step of three or more."""
    for step in study.plan.steps:
        keys = list(step.grid)
        for key in [None] if len(keys) == 2 else keys:
            (ax,) = panels(5.0, 2.9, 1, 1)
            search(study, ax, step=step.name, key=key)
            name = step.name if len(keys) <= 2 else f"{step.name}-{key}"
            yield name, _caption(study, step, key), ax


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
        f"{_at(step, best)} ({_method(step)}: {name} {_shown(study, best['value'])})"
        for step in study.plan.steps
        if (best := study.best(step)) is not None
    ]
    none = study.warnings[0] if study.warnings else "No trial has finished yet."
    return f"Best: {'; '.join(parts)}." if parts else none


def trials_table(study: Study) -> pd.DataFrame:
    """Every trial that ended, as text, in the order of the search."""
    name, unit, factor, digits = METRICS[study.plan.metric]
    trials = study.trials
    table = trials[["step", "state", "best_round", "rounds", *study.plan.keys]].copy()
    table.insert(1, "method", trials["method"].map(method_name))
    table[f"{name} ({unit})"] = (trials["value"] * factor).round(digits)
    numbers = table.select_dtypes("number")
    table[numbers.columns] = numbers.map(lambda v: "–" if pd.isna(v) else f"{v:g}").astype(object)
    return table.rename(columns=SYMBOLS | {"best_round": "best round"})


def _heat_map(study: Study, step: Step, ax: Axes) -> Axes:
    name, unit, factor, _ = METRICS[study.plan.metric]
    (first, across), (second, up) = ((key, sorted(grid)) for key, grid in step.grid.items())
    values = study.of(step)["value"].dropna() * factor
    norm = Normalize(*_colour_ends(values, lower=unit == "nats"))
    colors = colormaps["viridis_r" if unit == "nats" else "viridis"]
    written = max(len(across), len(up)) <= WRITTEN_CELLS
    digits = 3 if unit == "nats" else 1 if values.max() - values.min() >= 1.0 else 2
    for trial in study.of(step).to_dict("records"):
        x, y = across.index(trial[first]), up.index(trial[second])
        value = trial["value"] * factor
        known = not pd.isna(value)
        face = colors(float(np.clip(norm(value), 0.0, 1.0)))
        ax.add_patch(
            Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=face if known else GRID, linewidth=0)
        )
        # Not the page's ink and paper, which change places in the dark: cells keep their colours.
        ink = ("#000000" if face[0] + face[1] + face[2] > 1.4 else "#fefefe") if known else MUTED
        text = f"{value:.{digits}f}" if known else trial["state"]
        if written:
            size = 7.0 if known else 5.5
            ax.text(x, y, text, ha="center", va="center", color=ink, fontsize=size)
    if (best := study.best(step)) is not None:
        corner = (across.index(best[first]) - 0.46, up.index(best[second]) - 0.46)
        for color, width in (("#fefefe", 4.0), (VERMILION, 2.0)):
            frame = Rectangle(corner, 0.92, 0.92, fill=False, edgecolor=color, linewidth=width)
            ax.add_patch(frame)
    if not written:
        figure_of(ax).colorbar(ScalarMappable(norm, colors), ax=ax)
    for axis, side in ((ax.xaxis, across), (ax.yaxis, up)):
        every = max(1, len(side) // 12)
        axis.set_ticks(range(0, len(side), every), [number_text(v) for v in side[::every]])
    ax.tick_params(length=0)
    ax.grid(visible=False)
    ax.set(xlim=(-0.5, len(across) - 0.5), ylim=(-0.5, len(up) - 0.5))
    ax.set(xlabel=_label(first), ylabel=_label(second), title=f"{name} ({unit})")
    return ax


def _colour_ends(values: pd.Series[float], *, lower: bool) -> tuple[float, float]:
    """One trial that diverged must not take all difference from the colours of the others."""
    sign = -1.0 if lower else 1.0
    worst, middle, best = (sign * values).quantile([0.0, 0.5, 1.0]).fillna(0.0)
    floor = max(worst, best - 3.0 * (best - middle)) if middle < best else worst
    low, high = sorted((sign * floor, sign * best))
    return low, high if high > low else low + 1.0


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
    every = max(1, len(grid) // 8)
    ax.set_xticks(grid[::every], [number_text(value) for value in grid[::every]])
    ax.set(xlabel=_label(key), ylabel=f"{name} ({unit})")
    return ax


def _caption(study: Study, step: Step, key: str | None) -> str:
    """Where the best lies, whether the grid is too narrow, what ran, and what judged it."""
    trials, best = study.of(step), study.best(step)
    said = ["No trial has finished yet."]
    if best is not None:
        equal = trials[trials["value"] == best["value"]]
        so_far = "" if len(trials) == len(step) else " so far"
        said = [f"Best{so_far}, marked: {_at(step, best)}, {_shown(study, best['value'])}."]
        if len(equal) > 1:
            said.append(f"{len(equal)} trials reached it; the first of the grid counts.")
        for name, grid in step.grid.items():
            # An equally good value further inside does not ask for a wider grid.
            if len(grid) > 1 and equal[name].isin([min(grid), max(grid)]).all():
                end = "smallest" if best[name] == min(grid) else "largest"
                said.append(f"The best {SYMBOLS.get(name, name)} is the grid's {end}: widen it.")
    others = [SYMBOLS.get(name, name) for name in step.grid if name != key]
    if key and others:
        said.append(f"Each point is the best over {' and '.join(others)}.")
    counts = [f"{number} {state}" for state, number in trials["state"].value_counts().items()]
    counts += [f"{len(step) - len(trials)} not run yet"] * (len(trials) < len(step))
    said.append(f"{len(step)} trials: {', '.join(counts)}; {step.rounds} rounds each.")
    share = f"{study.plan.validation * 100.0:.3g} %"
    said.append(f"{share} of the training images, held out, judged them; no test image was seen.")
    return " ".join(said)


def _shown(study: Study, value: float) -> str:
    _, unit, factor, digits = METRICS[study.plan.metric]
    return f"{value * factor:.{digits}f} {unit}"


def _at(step: Step, trial: pd.Series[float]) -> str:
    return ", ".join(f"{SYMBOLS.get(key, key)} {trial[key]:g}" for key in step.grid)


def _method(step: Step) -> str:
    return method_name(step.method)


def _label(key: str) -> str:
    """The paper's symbol, and the key to write in a recipe or after ``--grid``."""
    return f"{SYMBOLS[key]} ({key})" if key in SYMBOLS else key
