"""The figures and the table of a search, and what is said about them."""

import logging
import tempfile
from pathlib import Path

from fednnnn_plugin.report.canvas import Canvas
from fednnnn_plugin.report.charts import Chart
from fednnnn_plugin.report.drawing import Job, checked_folder, draw_all, free_name, publish
from fednnnn_plugin.report.groups import SYMBOLS
from fednnnn_plugin.report.heat_map import colour_floor, draw_heat_map
from fednnnn_plugin.report.runs import DISPLAY_NAMES
from fednnnn_plugin.report.search_line import draw_line
from fednnnn_plugin.report.studies import Step, Study, read_study
from fednnnn_plugin.report.study_table import STATES, Point
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
            cells += [
                _text(trial.state),
                Cell(value, trial.value, best is not None and best[0] == point),
            ]
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
    how = ["The frame marks it."] if best else []
    floor = colour_floor(list(step.values().values()), metric)
    if floor is not None:
        side = "above" if metric.lower_is_better else "below"
        how.append(f"All values {side} {metric.text(floor, 1)} {metric.unit} share a colour.")
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
    name, over, how = step.name, f"over {_symbol(key)}", ["The ring marks it."] if best else []
    if len(step.grid) > 1:
        name += f"-{key}"
        others = " and ".join(_symbol(other) for other in step.grid if other != key)
        how.append(f"Each point is the best over {others}.")
    if ended:
        how.append("A cross on the base line: no trial finished there.")
    return _chart(study, step, name, over, how, "Line chart", canvas)


def _best_over_others(study: Study, step: Step, index: int) -> dict[float, float]:
    better = min if study.metric.lower_is_better else max
    found: dict[float, float] = {}
    for point, value in step.values().items():
        found[point[index]] = better(value, found.get(point[index], value))
    return found


def _chart(
    study: Study, step: Step, name: str, over: str, how: list[str], kind: str, canvas: Canvas
) -> Chart:
    title = f"{_method(step)}: {study.metric.name} {over}"
    best = study.best(step)
    found = "no trial has finished yet"
    if best:
        found = f"best {_shown(study, best[1])} at {_at(step, best[0])}"
    caption = " ".join([*_where_best(study, step), *how, _run(study, step), _judged(study)])
    header = ("step", "method", *step.grid, "state", "value", "best_round", "rounds")
    rows: list[tuple[object, ...]] = []
    for point in step.points():
        trial = step.trials.get(point)
        if trial is not None:
            ended = (trial.state, trial.value, trial.best_round, trial.rounds)
            rows.append((step.name, step.method, *point, *ended))
    alt = f"{kind} of the {study.metric.name} {over}, {_method(step)}: {found}. {_counts(step)}."
    return Chart(name, title, caption, alt, canvas, header, rows)


def _run(study: Study, step: Step) -> str:
    pruner = {True: "on", False: "off", None: "not recorded"}[study.prune]
    return f"{_counts(step)}, {step.rounds} rounds each; pruner {pruner}."


def _counts(step: Step) -> str:
    """How many trials there are, and what became of them."""
    states = [trial.state for trial in step.trials.values()]
    counts = [f"{states.count(s)} {s}" for s in STATES if s in states]
    if len(states) < len(step):
        counts.append(f"{len(step) - len(states)} not run yet")
    return f"{len(step)} trial{'' if len(step) == 1 else 's'}: {', '.join(counts)}"


def _judged(study: Study) -> str:
    share = "Part" if study.validation is None else f"{study.validation * 100.0:.3g} %"
    return f"{share} of the training images, held out, judged them; no test image was looked at."


def _where_best(study: Study, step: Step) -> list[str]:
    """Where the best lies, whether it shares its value, and whether the grid is too narrow."""
    best = study.best(step)
    if not best:
        return ["No trial has finished yet."]
    so_far = "" if len(step.trials) == len(step) else " so far"
    equal = [point for point, value in step.values().items() if value == best[1]]
    said = [f"Best{so_far}: {_at(step, best[0])}, {_shown(study, best[1])}."]
    if len(equal) > 1:
        said.append(f"{len(equal)} trials reached it; the first of the grid counts.")
    for index, (key, grid) in enumerate(step.grid.items()):
        ends = (min(grid), max(grid))
        # An equally good value further inside does not ask for a wider grid.
        if len(grid) > 1 and all(point[index] in ends for point in equal):
            which = "smallest" if best[0][index] == ends[0] else "largest"
            said.append(f"The best {_symbol(key)} is the {which} of the grid: widen it.")
    return said


def _shown(study: Study, value: float) -> str:
    return f"{study.metric.text(value)} {study.metric.unit}"


def _at(step: Step, point: Point) -> str:
    values = zip(step.grid, point, strict=True)
    return ", ".join(f"{_symbol(key)} {value:g}" for key, value in values)


def _method(step: Step) -> str:
    return DISPLAY_NAMES.get(step.method, step.method)


def _symbol(key: str) -> str:
    return SYMBOLS.get(key, key)


def _label(key: str) -> str:
    """The paper's symbol, and the key to write in a recipe or after ``--grid``."""
    return f"{SYMBOLS[key]} ({key})" if key in SYMBOLS else key


def _text(text: str) -> Cell:
    return Cell(text, text)


def _number(value: float | None) -> Cell:
    return Cell("–") if value is None else Cell(f"{value:g}", value)
