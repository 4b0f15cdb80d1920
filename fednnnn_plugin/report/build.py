"""From folders of runs and searches to a report: tables, figures and the page, in one folder."""

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.report.accuracy import (
    FEDAVG,
    AccuracyRow,
    accuracy_csv,
    accuracy_rows,
    accuracy_table,
)
from fednnnn_plugin.report.charts import charts
from fednnnn_plugin.report.drawing import (
    PAGE,
    Job,
    checked_folder,
    draw_all,
    free_name,
    publish,
)
from fednnnn_plugin.report.groups import Condition, Group, conditions, group_runs, single_clients
from fednnnn_plugin.report.layers import recorded_layers
from fednnnn_plugin.report.page import Figure, Section, render_page
from fednnnn_plugin.report.printable import printable
from fednnnn_plugin.report.runs import Run, read_runs
from fednnnn_plugin.report.search import headline, search_jobs, trials_table
from fednnnn_plugin.report.speed import rounds_csv, rounds_rows, rounds_table
from fednnnn_plugin.report.studies import Study, read_studies
from fednnnn_plugin.report.style import line_styles
from fednnnn_plugin.report.tables import Table

# Wider than this, in points, a figure takes the page's whole width.
HALF_PAGE = 430.0


@dataclass(frozen=True)
class Report:
    """What was written, and what to tell.

    Args:
        text: the tables for a terminal.
        page: the HTML page.
        warnings: a line for each thing left out or worth knowing.
    """

    text: str
    page: Path
    warnings: tuple[str, ...]


def build_report(
    paths: Sequence[Path],
    out: Path,
    *,
    layers: Sequence[str] = (),
    target: float | None = None,
) -> Report:
    """Read the folders of runs and of searches, and write their report.

    Every file is written beside its place and then moved there, the page last; nothing is written
    outside ``out`` and nothing in it that is not of this report is touched.

    Args:
        paths: run folders, study folders, or folders of them.
        out: where to write; made if missing.
        layers: modules whose norms to show; the paper's where empty.
        target: an accuracy in (0, 1]; with it, a table of the rounds that reach it.

    Raises:
        UserError: no study and no run with a recorded round, a target that is no accuracy, or an
            ``out`` that cannot be written.
    """
    if target is not None and not 0.0 < target <= 1.0:
        raise UserError(f"--target: {target:g} is not allowed; it must be above 0 and at most 1")
    runs, warnings = read_runs(paths)
    studies, more = read_studies([Path(path) for path in paths])
    warnings += more
    groups, more = group_runs(runs)
    warnings += more
    if not groups and not studies:
        raise UserError("\n".join([*warnings, "no run with a recorded round was given"]))
    warnings += _unknown_layers(layers, runs)

    rows = accuracy_rows(groups)
    accuracy = accuracy_table(rows)
    texts: dict[str, str] = {}
    if groups:
        texts |= {f"accuracy{kind}": text for kind, text in _renderings(accuracy)}
        texts["accuracy.csv"] = accuracy_csv(rows)
    rounds = None
    if target is not None and groups:
        speeds = rounds_rows(groups, target)
        rounds = rounds_table(speeds, target)
        texts |= {f"rounds-to-accuracy{kind}": text for kind, text in _renderings(rounds)}
        texts["rounds-to-accuracy.csv"] = rounds_csv(speeds, target)

    by_condition = _jobs(groups, layers)
    by_study = _search_jobs(studies)
    jobs = [job for _, found in (*by_condition, *by_study) for job in found]
    checked_folder(out, "--out")
    with tempfile.TemporaryDirectory(dir=out, prefix=".partial-") as name:
        staging = Path(name)
        draw_all(jobs, staging)
        sections = [
            Section(
                f"{condition.dataset_name}: {condition.long_name}",
                f"{condition.dataset_name}: {condition.name}",
                _headline(condition, rows),
                tuple(_figures(found, staging)),
            )
            for condition, found in by_condition
        ]
        sections += [
            Section(
                f"Search: {study.name}",
                f"Search: {study.name}",
                headline(study),
                tuple(_figures(found, staging)),
                trials_table(study),
            )
            for study, found in by_study
        ]
        looks = [
            look
            for members in conditions(groups).values()
            for look in line_styles([(group.method, group.variant) for group in members])
        ]
        page = render_page(runs, groups, accuracy, rounds, looks, sections, warnings)
        for file, text in (texts | {PAGE: page}).items():
            (staging / file).write_text(text, encoding="utf-8")
        publish(staging, out, "--out")
    shown = [table.text() for table in (accuracy, rounds) if table is not None and table.rows]
    shown += [f"Search: {study.name}\n\n{headline(study)}\n" for study in studies]
    text = "\n".join(shown)
    return Report(text, out / PAGE, tuple(warnings))


def _renderings(table: Table) -> list[tuple[str, str]]:
    return [(".txt", table.text()), (".md", table.markdown()), (".tex", table.latex())]


def _unknown_layers(layers: Sequence[str], runs: Sequence[Run]) -> list[str]:
    known = recorded_layers(runs)
    return [
        f"--layer {printable(layer)}: no run recorded it; recorded are "
        + (", ".join(map(printable, known)) or "none")
        for layer in layers
        if layer not in known
    ]


def _jobs(groups: Sequence[Group], layers: Sequence[str]) -> list[tuple[Condition, list[Job]]]:
    taken: set[str] = set()
    found = []
    for condition, members in conditions(groups).items():
        folder = "figures/" + free_name(f"{condition.dataset} {condition.name}", taken)
        names: set[str] = set()
        references = single_clients(groups, condition.dataset)
        jobs = [
            Job(f"{folder}/{free_name(chart.name, names)}", chart)
            for chart in charts(condition, members, references, layers)
        ]
        found.append((condition, jobs))
    return found


def _search_jobs(studies: Sequence[Study]) -> list[tuple[Study, list[Job]]]:
    taken: set[str] = set()
    return [
        (study, search_jobs(study, "figures/" + free_name(f"search {study.name}", taken)))
        for study in studies
    ]


def _figures(jobs: Iterable[Job], folder: Path) -> Iterable[Figure]:
    for job in jobs:
        chart = job.chart
        drawing = (folder / f"{job.stem}.svg").read_text(encoding="utf-8")
        wide = chart.canvas.width > HALF_PAGE
        yield Figure(chart.title, chart.caption, chart.alt, job.stem, wide, drawing)


def _headline(condition: Condition, rows: Sequence[AccuracyRow]) -> str:
    """The best method of a condition, and how far it is ahead of FedAvg."""
    measured = [(row, row.best) for row in rows if row.group.condition == condition and row.best]
    if len(measured) < 2:
        return ""
    row, best = max(measured, key=lambda pair: pair[1].mean)
    text = f"Best: {row.group.label}, {best.text(2, 100.0)} %"
    averaged = [value.mean for other, value in measured if other.group.method == FEDAVG]
    if averaged and row.group.method != FEDAVG:
        text += f", {(best.mean - max(averaged)) * 100:.1f} points above FedAvg"
    return text + "."
