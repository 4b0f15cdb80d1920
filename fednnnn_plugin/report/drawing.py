"""Drawing figures into files, and moving files to their place."""

import multiprocessing
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.report.canvas import FORMATS
from fednnnn_plugin.report.charts import Chart
from fednnnn_plugin.report.printable import printable
from fednnnn_plugin.report.tables import csv_text

PAGE = "index.html"
# Starting a process pays from about this many figures on.
FEW_CHARTS = 4


@dataclass(frozen=True, eq=False)
class Job:
    """A figure to draw, and where: a path below the report's folder, without suffix."""

    stem: str
    chart: Chart


def free_name(name: str, taken: set[str]) -> str:
    """A file name of plain characters that is not taken yet, whatever the file system's case."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:80] or "unnamed"
    free, number = plain, 2
    while free in taken:
        free, number = f"{plain}-{number}", number + 1
    taken.add(free)
    return free


def draw_all(jobs: Sequence[Job], folder: Path) -> None:
    """Draw every figure in every format, on all cores where processes can be forked."""
    for parent in {(folder / job.stem).parent for job in jobs}:
        parent.mkdir(parents=True, exist_ok=True)
    # Only Linux: elsewhere a fork is unsafe or missing, and a fresh process costs what it saves.
    forks = sys.platform == "linux" and len(jobs) >= FEW_CHARTS
    count = min(len(os.sched_getaffinity(0)), len(jobs)) if forks else 1
    context = multiprocessing.get_context("fork" if forks else None)
    processes = [
        context.Process(target=_draw_some, args=(jobs[start::count], folder))
        for start in range(1, count)
    ]
    for process in processes:
        process.start()
    _draw_some(jobs[0::count], folder)
    for process in processes:
        process.join()
        if process.exitcode:
            raise RuntimeError(f"drawing figures ended with exit status {process.exitcode}")


def _draw_some(jobs: Iterable[Job], folder: Path) -> None:
    for job in jobs:
        stem = folder / job.stem
        for kind in FORMATS:
            job.chart.canvas.save(stem.with_name(f"{stem.name}.{kind}"))
        numbers = csv_text(job.chart.header, job.chart.rows)
        stem.with_name(f"{stem.name}.csv").write_text(numbers, encoding="utf-8")


def checked_folder(out: Path, option: str) -> Path:
    """Make the folder where needed; make sure that its figures lie inside of it.

    Raises:
        UserError: it cannot be written, or a link in it leads out; the line starts with ``option``.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        for inner in (out / "figures", *(out / "figures").glob("*/")):
            if inner.exists() and not inner.resolve().is_relative_to(out.resolve()):
                raise UserError(f"{option}: {printable(inner)} leads out of {printable(out)}")
    except OSError as error:
        raise _unwritable(out, option, error) from error
    return out


def publish(staging: Path, out: Path, option: str) -> None:
    """Move every file to its place, the page last.

    Raises:
        UserError: a place that cannot be written; the line starts with ``option``.
    """
    files = sorted(path.relative_to(staging) for path in staging.rglob("*") if path.is_file())
    for file in sorted(files, key=lambda path: path.name == PAGE):
        try:
            (out / file).parent.mkdir(parents=True, exist_ok=True)
            (staging / file).replace(out / file)
        except OSError as error:
            raise _unwritable(out / file, option, error) from error


def _unwritable(path: Path, option: str, error: OSError) -> UserError:
    return UserError(f"{option}: {printable(path)} cannot be written ({error.strerror})")
