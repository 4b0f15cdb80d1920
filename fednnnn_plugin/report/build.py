"""From run folders to a report: tables, figures and the page, in one folder."""

import multiprocessing
import os
import re
import sys
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
from fednnnn_plugin.report.canvas import FORMATS
from fednnnn_plugin.report.charts import Chart, charts
from fednnnn_plugin.report.groups import Condition, Group, conditions, group_runs, single_clients
from fednnnn_plugin.report.layers import recorded_layers
from fednnnn_plugin.report.page import Figure, Section, render_page
from fednnnn_plugin.report.printable import printable
from fednnnn_plugin.report.runs import Run, read_runs
from fednnnn_plugin.report.speed import rounds_csv, rounds_rows, rounds_table
from fednnnn_plugin.report.style import line_styles
from fednnnn_plugin.report.tables import Table, csv_text

PAGE = "index.html"
# Wider than this, in points, a figure takes the page's whole width.
HALF_PAGE = 430.0
# Starting a process pays from about this many figures on.
FEW_CHARTS = 4


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


@dataclass(frozen=True, eq=False)
class _Job:
    """A figure to draw, and where: a path below the report's folder, without suffix."""

    stem: str
    chart: Chart


def build_report(
    paths: Sequence[Path],
    out: Path,
    *,
    layers: Sequence[str] = (),
    target: float | None = None,
) -> Report:
    """Read run folders and write their report.

    Every file is written beside its place and then moved there, the page last; nothing is written
    outside ``out`` and nothing in it that is not of this report is touched.

    Args:
        paths: run folders, or folders of them.
        out: where to write; made if missing.
        layers: modules whose norms to show; the paper's where empty.
        target: an accuracy in (0, 1]; with it, a table of the rounds that reach it.

    Raises:
        UserError: no run with a recorded round, a target that is no accuracy, or an ``out`` that
            cannot be written.
    """
    if target is not None and not 0.0 < target <= 1.0:
        raise UserError(f"--target: {target:g} is not allowed; it must be above 0 and at most 1")
    runs, warnings = read_runs(paths)
    groups, more = group_runs(runs)
    warnings += more
    if not groups:
        raise UserError("\n".join([*warnings, "no run with a recorded round was given"]))
    warnings += _unknown_layers(layers, runs)

    rows = accuracy_rows(groups)
    accuracy = accuracy_table(rows)
    texts = {f"accuracy{kind}": text for kind, text in _renderings(accuracy)}
    texts["accuracy.csv"] = accuracy_csv(rows)
    rounds = None
    if target is not None:
        speeds = rounds_rows(groups, target)
        rounds = rounds_table(speeds, target)
        texts |= {f"rounds-to-accuracy{kind}": text for kind, text in _renderings(rounds)}
        texts["rounds-to-accuracy.csv"] = rounds_csv(speeds, target)

    by_condition = _jobs(groups, layers)
    jobs = [job for _, of_condition in by_condition for job in of_condition]
    out = _folder(out)
    with tempfile.TemporaryDirectory(dir=out, prefix=".partial-") as name:
        staging = Path(name)
        _draw(jobs, staging)
        sections = [
            Section(condition, _headline(condition, rows), tuple(_figures(found, staging)))
            for condition, found in by_condition
        ]
        looks = [
            look
            for members in conditions(groups).values()
            for look in line_styles([(group.method, group.variant) for group in members])
        ]
        page = render_page(runs, groups, accuracy, rounds, looks, sections, warnings)
        for file, text in (texts | {PAGE: page}).items():
            (staging / file).write_text(text, encoding="utf-8")
        _publish(staging, out)
    text = accuracy.text() if rounds is None else f"{accuracy.text()}\n{rounds.text()}"
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


def _jobs(groups: Sequence[Group], layers: Sequence[str]) -> list[tuple[Condition, list[_Job]]]:
    taken: set[str] = set()
    found = []
    for condition, members in conditions(groups).items():
        folder = "figures/" + _free(f"{condition.dataset} {condition.name}", taken)
        names: set[str] = set()
        references = single_clients(groups, condition.dataset)
        jobs = [
            _Job(f"{folder}/{_free(chart.name, names)}", chart)
            for chart in charts(condition, members, references, layers)
        ]
        found.append((condition, jobs))
    return found


def _free(name: str, taken: set[str]) -> str:
    """A file name of plain characters that is not taken yet, whatever the file system's case."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:80] or "unnamed"
    free, number = plain, 2
    while free in taken:
        free, number = f"{plain}-{number}", number + 1
    taken.add(free)
    return free


def _draw(jobs: Sequence[_Job], folder: Path) -> None:
    """Draw every figure in every format, on all cores where processes can be forked."""
    for parent in {(folder / job.stem).parent for job in jobs}:
        parent.mkdir(parents=True, exist_ok=True)
    # Only Linux: elsewhere a fork is unsafe or missing, and a fresh process costs what it saves.
    forks = sys.platform == "linux" and len(jobs) >= FEW_CHARTS
    count = min(len(os.sched_getaffinity(0)), len(jobs)) if forks else 1
    context = multiprocessing.get_context("fork" if forks else None)
    processes = [
        context.Process(target=_draw_all, args=(jobs[start::count], folder))
        for start in range(1, count)
    ]
    for process in processes:
        process.start()
    _draw_all(jobs[0::count], folder)
    for process in processes:
        process.join()
        if process.exitcode:
            raise RuntimeError(f"drawing figures ended with exit status {process.exitcode}")


def _draw_all(jobs: Iterable[_Job], folder: Path) -> None:
    for job in jobs:
        stem = folder / job.stem
        for kind in FORMATS:
            job.chart.canvas.save(stem.with_name(f"{stem.name}.{kind}"))
        numbers = csv_text(job.chart.header, job.chart.rows)
        stem.with_name(f"{stem.name}.csv").write_text(numbers, encoding="utf-8")


def _figures(jobs: Iterable[_Job], folder: Path) -> Iterable[Figure]:
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


def _folder(out: Path) -> Path:
    try:
        out.mkdir(parents=True, exist_ok=True)
        for inner in (out / "figures", *(out / "figures").glob("*/")):
            if inner.exists() and not inner.resolve().is_relative_to(out.resolve()):
                raise UserError(f"--out: {printable(inner)} leads out of {printable(out)}")
    except OSError as error:
        raise UserError(f"--out: {printable(out)} cannot be written ({error.strerror})") from error
    return out


def _publish(staging: Path, out: Path) -> None:
    """Move every file to its place, the page last."""
    files = sorted(path.relative_to(staging) for path in staging.rglob("*") if path.is_file())
    for file in sorted(files, key=lambda path: path.name == PAGE):
        try:
            (out / file).parent.mkdir(parents=True, exist_ok=True)
            (staging / file).replace(out / file)
        except OSError as error:
            where = printable(out / file)
            raise UserError(f"--out: {where} cannot be written ({error.strerror})") from error
