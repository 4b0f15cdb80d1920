"""A search over the values of a study: its figures, its table, and what is said about them."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.report.groups import SYMBOLS
from fednnnn_plugin.report.runs import DISPLAY_NAMES
from fednnnn_plugin.report.study import Step, Study, read_study
from fednnnn_plugin.report.style import (
    BLUE,
    GRID,
    MUTED,
    VERMILION,
    linear_axis,
    number_text,
    save,
    styled,
)

METRICS = {
    "best_accuracy": ("best validation accuracy", "%", 100.0),
    "final_accuracy": ("final validation accuracy", "%", 100.0),
    "final_loss": ("final validation loss", "nats", 1.0),
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
    for name, _, figure in search_figures(study):
        for kind in ("svg", "pdf", "png"):
            save(figure, folder / "figures" / f"{name}.{kind}")


def search_figures(study: Study) -> list[tuple[str, str, Figure]]:
    """A figure for each step, or for each value of a step that searches three or more.

    Returns:
        Name for a file, caption, figure.
    """
    found = []
    for step in study.plan.steps:
        keys = list(step.grid)
        for key in [None] if len(keys) == 2 else keys:
            figure = Figure(figsize=(5.0, 2.9), layout="constrained")
            search(study, figure.subplots(), step=step.name, key=key)
            name = step.name if len(keys) <= 2 else f"{step.name}-{key}"
            found.append((name, _caption(study, step, key), figure))
    return found


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
    parts = []
    for step in study.plan.steps:
        best = study.best(step)
        if best is not None:
            value = _shown(study, best["value"])
            parts.append(f"{_at(step, best)} ({_method(step)}: {name} {value})")
    if parts:
        return f"Best: {'; '.join(parts)}."
    return study.warnings[0] if study.warnings else "No trial has finished yet."


def trials_table(study: Study) -> pd.DataFrame:
    """Every trial that ended, as text, in the order of the search."""
    name, unit, factor = METRICS[study.plan.metric]
    trials = study.trials
    table = pd.DataFrame({"step": trials["step"], "method": trials["method"].replace(DISPLAY_NAMES)})
    for key in study.plan.keys:
        table[SYMBOLS.get(key, key)] = trials[key].map(_number)
    table["state"] = trials["state"]
    digits = 4 if unit == "nats" else 2
    value = trials["value"].map(lambda v: "–" if pd.isna(v) else f"{v * factor:.{digits}f}")
    return table.assign(
        **{f"{name} ({unit})": value},
        **{"best round": trials["best_round"].map(_number), "rounds": trials["rounds"].map(_number)},
    )


def _heat_map(study: Study, step: Step, ax: Axes) -> Axes:
    name, unit, factor = METRICS[study.plan.metric]
    across, up = (sorted(values) for values in step.grid.values())
    first, second = step.grid
    trials = study.of(step)
    values = trials["value"].dropna() * factor
    ends = _colour_ends(values, lower=unit == "nats")
    colors = colormaps["viridis_r" if unit == "nats" else "viridis"]
    norm = Normalize(*ends)
    roomy = max(len(across), len(up)) <= WRITTEN_CELLS
    digits = 3 if unit == "nats" else 1 if np.ptp(values) >= 1.0 else 2 if len(values) else 1
    for _, trial in trials.iterrows():
        x, y = across.index(trial[first]), up.index(trial[second])
        known = not pd.isna(trial["value"])
        place = float(norm(trial["value"] * factor)) if known else 0.0
        face = colors(min(1.0, max(0.0, place))) if known else GRID
        ax.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=face, linewidth=0))
        text = f"{trial['value'] * factor:.{digits}f}" if known else trial["state"]
        dark = not known or sum(face[:3]) > 1.4
        # Not the page's ink and paper, which change places in the dark: cells keep their colours.
        ink = MUTED if not known else "#000000" if dark else "#fefefe"
        if roomy:
            ax.text(x, y, text, ha="center", va="center", color=ink, fontsize=7 if known else 5.5)
    best = study.best(step)
    if best is not None:
        corner = (across.index(best[first]) - 0.46, up.index(best[second]) - 0.46)
        ax.add_patch(Rectangle(corner, 0.92, 0.92, fill=False, edgecolor="#fefefe", linewidth=4))
        ax.add_patch(Rectangle(corner, 0.92, 0.92, fill=False, edgecolor=VERMILION, linewidth=2))
    if not roomy:
        from matplotlib.cm import ScalarMappable

        bar = ax.get_figure(root=True).colorbar(ScalarMappable(norm, colors), ax=ax)
        bar.outline.set_visible(False)
    every = [max(1, len(side) // 12) for side in (across, up)]
    ax.set_xticks(range(0, len(across), every[0]), [number_text(v) for v in across[:: every[0]]])
    ax.set_yticks(range(0, len(up), every[1]), [number_text(v) for v in up[:: every[1]]])
    ax.tick_params(length=0)
    ax.grid(visible=False)
    ax.set(xlim=(-0.5, len(across) - 0.5), ylim=(-0.5, len(up) - 0.5))
    ax.set(xlabel=_label(first), ylabel=_label(second), title=f"{name} ({unit})")
    return ax


def _colour_ends(values: pd.Series, *, lower: bool) -> tuple[float, float]:
    """One trial that diverged must not take all difference from the colours of the others."""
    if values.empty:
        return 0.0, 1.0
    best, middle = (values.min() if lower else values.max()), values.median()
    floor = best - 3.0 * (best - middle)
    if best == middle:
        return float(values.min()), float(values.max()) + 1e-12
    return (best, min(floor, values.max())) if lower else (max(floor, values.min()), best)


def _line(study: Study, step: Step, key: str, ax: Axes) -> Axes:
    name, unit, factor = METRICS[study.plan.metric]
    trials = study.of(step)
    by_value = trials.dropna(subset=["value"]).groupby(key)["value"]
    points = (by_value.min() if unit == "nats" else by_value.max()) * factor
    ax.plot(points.index, points, "o-", color=BLUE, linewidth=1.4, markersize=3.5)
    best = study.best(step)
    if best is not None:
        at = (best[key], best["value"] * factor)
        ax.plot(*at, "o", color=VERMILION, markersize=5)
        ax.plot(*at, "o", color=VERMILION, markersize=11, fillstyle="none", markeredgewidth=1.2)
    linear_axis(ax, to_hundred=unit == "%")
    for value in sorted(set(trials[key]) - set(points.index)):
        ax.annotate("×", (value, 0.0), (0, 5), xycoords=("data", "axes fraction"), color=MUTED,
                    textcoords="offset points", ha="center")  # fmt: skip
    grid = sorted(step.grid[key])
    if grid[0] > 0.0 and grid[-1] / grid[0] >= WIDE_GRID:
        ax.set_xscale("log")
        ax.minorticks_off()
    every = max(1, len(grid) // 8)
    ax.margins(x=0.05)
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
                which = "smallest" if best[name] == min(grid) else "largest"
                said.append(f"The best {SYMBOLS.get(name, name)} is the {which}: widen the grid.")
    others = [SYMBOLS.get(name, name) for name in step.grid if name != key]
    if key and others:
        said.append(f"Each point is the best over {' and '.join(others)}.")
    states = trials["state"].value_counts()
    counts = [f"{number} {state}" for state, number in states.items()]
    counts += [f"{len(step) - len(trials)} not run yet"] * (len(trials) < len(step))
    said.append(f"{len(step)} trials: {', '.join(counts)}; {step.rounds} rounds each.")
    said.append(f"Trials far behind were {'' if study.plan.prune else 'not '}stopped early.")
    share = f"{study.plan.validation * 100.0:.3g} %"
    said.append(f"{share} of the training images, held out, judged them; no test image was seen.")
    return " ".join(said)


def _shown(study: Study, value: float) -> str:
    _, unit, factor = METRICS[study.plan.metric]
    return f"{value * factor:.{4 if unit == 'nats' else 2}f} {unit}"


def _at(step: Step, trial: pd.Series) -> str:
    return ", ".join(f"{SYMBOLS.get(key, key)} {trial[key]:g}" for key in step.grid)


def _method(step: Step) -> str:
    return DISPLAY_NAMES.get(step.method, step.method)


def _label(key: str) -> str:
    """The paper's symbol, and the key to write in a recipe or after ``--grid``."""
    return f"{SYMBOLS[key]} ({key})" if key in SYMBOLS else key


def _number(value: float) -> str:
    return "–" if pd.isna(value) else f"{value:g}"
