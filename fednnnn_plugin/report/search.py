"""The figures and the table of a search, and what is said about them."""

import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path

from fednnnn_plugin.report.charts import Chart
from fednnnn_plugin.report.drawing import Job, checked_folder, draw_all, free_name, publish
from fednnnn_plugin.report.groups import SYMBOLS
from fednnnn_plugin.report.runs import DISPLAY_NAMES
from fednnnn_plugin.report.search_figure import colour_floor, draw_heat_map, draw_line
from fednnnn_plugin.report.studies import STATES, Point, Step, Study, read_study
from fednnnn_plugin.report.tables import Cell, Table

_log = logging.getLogger(__name__)


def write_figures(study: Path) -> None:
    """Write a study's figures, each as SVG, PDF, PNG and CSV, into its ``figures/``.

    A study that cannot be read, or a line of its table, is said in the log and left out.

    Raises:
        UserError: a file that cannot be written.
    """
    found, problems = read_study(study)
    for problem in problems:
        _log.warning("%s", problem)
    if found is None:
        return
    jobs = search_jobs(found, "figures")
    checked_folder(study, "--study")
    with tempfile.TemporaryDirectory(dir=study, prefix=".partial-") as name:
        draw_all(jobs, Path(name))
        publish(Path(name), study, "--study")


def search_jobs(study: Study, folder: str) -> list[Job]:
    """A figure for each step, or for each value of a step that searches three or more.

    Args:
        study: the search.
        folder: where the files go, below the report's or the study's folder.
    """
    taken: set[str] = set()
    return [
        Job(f"{folder}/{free_name(chart.name, taken)}", chart)
        for step in study.steps
        for chart in _charts(study, step)
    ]


def headline(study: Study) -> str:
    """What was chosen, step by step, and what it reached."""
    parts = []
    for step in study.steps:
        best = study.best(step)
        if best:
            label = study.metric.name.removeprefix("best ")
            parts.append(
                f"{_at(step, best[0])} ({_method(step)}: {label} {_shown(study, best[1])})"
            )
    return f"Best: {'; '.join(parts)}." if parts else "No trial has finished yet."


def trials_table(study: Study) -> Table:
    """Every trial that ended, in the order of the search; the best of each step stands out."""
    metric = study.metric
    keys = list(dict.fromkeys(key for step in study.steps for key in step.grid))
    columns = ("step", "method", *(_symbol(key) for key in keys), "state")
    columns += (f"{metric.name} ({metric.unit})", "best round", "rounds")
    rows = []
    for step in study.steps:
        best = study.best(step)
        for point in step.points():
            trial = step.trials.get(point)
            if trial is None:
                continue
            values = dict(zip(step.grid, point, strict=True))
            value = "–" if trial.value is None else metric.text(trial.value)
            cells = [_text(step.name), _text(_method(step))]
            cells += [_number(values.get(key)) for key in keys]
            cells += [_text(trial.state), Cell(value, trial.value, best is not None and best[0] == point)]
            cells += [_number(trial.best_round), _number(trial.rounds)]
            rows.append(tuple(cells))
    numeric = {*range(2, 2 + len(keys)), *range(3 + len(keys), len(columns))}
    return Table(f"Trials of {study.name}", columns, tuple(rows), frozenset(numeric))


def _charts(study: Study, step: Step) -> list[Chart]:
    keys = list(step.grid)
    if len(keys) == 2:
        return [_heat_map(study, step)]
    return [_line(study, step, index) for index in range(len(keys))]


def _heat_map(study: Study, step: Step) -> Chart:
    metric = study.metric
    first, second = step.grid
    best = study.best(step)
    canvas = draw_heat_map(
        step.grid[first],
        step.grid[second],
        step.trials,
        best[0] if best else None,
        (_label(first), _label(second)),
        metric,
    )
    how = "The frame marks the best. " if best else ""
    floor = colour_floor(list(step.values().values()), metric)
    if floor is not None:
        side = "above" if metric.lower_is_better else "below"
        how += f"All values {side} {metric.text(floor, 1)} {metric.unit} share a colour. "
    return _chart(study, step, step.name, f"over {_symbol(first)} and {_symbol(second)}",
                  how, "Heat map", canvas)  # fmt: skip


def _line(study: Study, step: Step, index: int) -> Chart:
    """The metric over one value; where there are others, each point is the best over them."""
    key = list(step.grid)[index]
    values = _best_over_others(study, step, index)
    best = study.best(step)
    ended = sorted({point[index] for point in step.trials} - set(values))
    canvas = draw_line(
        step.grid[key], values, ended, best[0][index] if best else None, _label(key), study.metric
    )
    name, over, how = step.name, f"over {_symbol(key)}", "The ring marks the best. " if best else ""
    if len(step.grid) > 1:
        name += f"-{key}"
        others = " and ".join(_symbol(other) for other in step.grid if other != key)
        how += f"Each point is the best over {others}. "
    if ended:
        how += "A cross on the base line: no trial finished there. "
    return _chart(study, step, name, over, how, "Line chart", canvas)


def _best_over_others(study: Study, step: Step, index: int) -> dict[float, float]:
    better = min if study.metric.lower_is_better else max
    found: dict[float, float] = {}
    for point, value in step.values().items():
        found[point[index]] = better(value, found.get(point[index], value))
    return found


def _chart(
    study: Study, step: Step, name: str, over: str, how: str, kind: str, canvas: object
) -> Chart:  # fmt: skip
    raise NotImplementedError
