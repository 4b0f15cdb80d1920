"""From folders of runs and studies to a report: tables, figures and the page, in one folder."""

import logging
import os
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from urllib.parse import quote

import jinja2
import pandas as pd

from fednnnn_plugin.errors import UserError, check_known, in_python, printable
from fednnnn_plugin.files import checked_path
from fednnnn_plugin.reporting import runs as run_folders
from fednnnn_plugin.reporting import search_figures, tables
from fednnnn_plugin.reporting.arguments import (
    FORMAT,
    LAYERS,
    OUT,
    checked_names,
    parsed_target,
    run_paths,
)
from fednnnn_plugin.reporting.cells import as_csv
from fednnnn_plugin.reporting.charts import Chart, condition_charts
from fednnnn_plugin.reporting.conditions import arrange, references
from fednnnn_plugin.reporting.output import MARKDOWN, PAGE, Files, check_free, write_report
from fednnnn_plugin.reporting.study import Study, is_study, read_study
from fednnnn_plugin.reporting.style import drawn
from fednnnn_plugin.reporting.typeset import Table, escaped

_log = logging.getLogger(__name__)
FORMATS = ("svg", "pdf", "png")


@dataclass(frozen=True)
class Report:
    """The tables for a terminal, the HTML page, and a line for each thing worth knowing."""

    text: str
    page: Path
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Section:
    """A condition's or a study's figures."""

    title: str
    headline: str
    charts: list[Chart]


@in_python
def report(
    *runs: Path | str | Iterable[Path | str],
    out: Path | str = "report",
    layers: str | Sequence[str] = (),
    target: float | str | None = None,
    formats: str | Sequence[str] = (),
    hue: str | Sequence[str] = (),
    overwrite: bool = False,
) -> Path:
    """Make tables, figures and a page from runs and studies, like ``fednnnn report``.

    What was left out is logged as a warning.

    Args:
        runs: run folders, study folders, or folders of them, as for
            :func:`~fednnnn_plugin.read_runs`.
        out: where tables, figures and ``index.html`` go.
        layers: a module or modules whose norms to show, such as ``"fc3"``; by default the last one
            named ``fc…`` and the last one named ``conv…``.
        target: an accuracy in (0, 1], or a value of the runs' first metric; or a text such as
            ``"worst_10=0.6"``, of ``accuracy``, ``loss``, a first metric, or ``worst_10``, the
            accuracy of the worst tenth of the clients. A table says which
            round reaches it first: the median over seeds, and how many got there.
        formats: ``"pdf"``, ``"png"`` or both: further files of each figure, beside its SVG.
        hue: the column or columns of :func:`~fednnnn_plugin.read_runs` whose values tell lines
            apart; by default the method, and the settings that differ.
        overwrite: replace an earlier report in ``out``.

    Returns:
        The path of the page.

    Raises:
        UserError: no run was found, a bad argument, or ``out`` has a report and ``overwrite`` is
            not set, or has files of such names that are of no report.
    """
    built = build_report(
        run_paths(runs),
        checked_path(OUT, out),
        layers=layers,
        target=target,
        formats=formats,
        hue=hue,
        overwrite=overwrite,
    )
    for warning in built.warnings:
        _log.warning("%s", warning)
    return built.page


def build_report(
    paths: Sequence[Path],
    out: Path,
    *,
    layers: str | Sequence[str] = (),
    target: float | str | None = None,
    formats: str | Sequence[str] = (),
    hue: str | Sequence[str] = (),
    overwrite: bool = False,
) -> Report:
    """Read run folders, study folders, or folders of them, and write their report.

    The arguments are those of :func:`report`, which takes patterns as well.
    """
    check_free(out, overwrite=overwrite)
    metric, value = (None, None) if target is None else parsed_target(target)
    asked = ["svg", *checked_names(FORMAT, formats)]
    for name in asked:
        check_known(FORMAT, name, FORMATS)
    kinds, layers = [kind for kind in FORMATS if kind in asked], checked_names(LAYERS, layers)
    runs, warnings = run_folders.read_folders(paths)
    studies = _studies(paths, warnings)
    if runs.empty and not studies:
        raise UserError("\n".join([*warnings, "no run with a recorded round was given"]))
    known = run_folders.layers(runs)
    recorded = f"no run recorded it; recorded are {', '.join(known) or 'none'}"
    unknown = [printable(name) for name in dict.fromkeys(layers) if name not in known]
    warnings += [f"{LAYERS}: {name}: {recorded}" for name in unknown]
    files: Files = {}
    shown: dict[str, Table] = {}
    sections: list[Section] = []
    if not runs.empty:
        files["rounds.csv"] = as_csv(runs)
        runs = arrange(runs, warnings, hue)
        shown["accuracy"] = tables.accuracy(runs)
        if value is not None:
            shown["rounds-to-accuracy"] = tables.rounds_to(runs, value, metric)
        for (data, condition), members in runs.groupby(["data", "condition"], sort=False):
            charts = condition_charts(members, references(runs, members), layers, warnings)
            title = f"{data}: {condition}"
            sections.append(Section(title, tables.settings(members), list(charts)))
    searches = [_search(study) for study in studies]
    sections += searches
    for name, table in shown.items():
        files[f"{name}.csv"] = as_csv(table.numbers)
        files[f"{name}.tex"] = table.latex().encode()
    files |= _drawings(sections, kinds)
    for name, template in _templates().items():
        page = template.render(
            beginning=_beginning(runs, paths, out),
            tables=shown,
            sections=sections,
            kinds=kinds,
            drawing=lambda chart: b64encode(files[f"{chart.stem}.svg"]).decode(),
            warnings=warnings,
            version=version("fednnnn-plugin"),
        )
        files[name] = page.encode()
    write_report(out, files)
    texts = [table.text() for table in shown.values()]
    texts += [f"{section.title}\n\n{section.headline}\n" for section in searches]
    return Report("\n".join(texts), out / PAGE, tuple(warnings))


def _beginning(runs: pd.DataFrame, paths: Sequence[Path], out: Path) -> Iterator[str]:
    """What the page is of: how many runs, of which commits and machines; pages beside them."""
    if not runs.empty:
        many, rounds = runs["run"].nunique(), len(runs)
        yield f"Made by `fednnnn report` from the records of {many} runs ({rounds} rounds)."
        for name, what in (("commit", "Commits"), ("device", "Machines")):
            counts = runs.drop_duplicates("run")[name].value_counts(sort=False)
            texts = [escaped(f"{each} ({count} runs)") for each, count in counts.items()]
            missing = many - int(counts.sum())
            texts += [f"not recorded ({missing} runs)"] * bool(missing)
            yield f"{what}: {', '.join(texts)}."
        if minutes := runs[run_folders.SECONDS].sum().sum() / 60.0:
            took = f"{minutes / 60.0:.1f} hours" if minutes >= 60.0 else f"{minutes:.1f} minutes"
            yield f"Training, aggregation and evaluation took {took} in all."
    beside = out.glob("*.md") if os.path.realpath(out) in map(os.path.realpath, paths) else ()
    for name in sorted({page.name for page in beside} - {MARKDOWN}):
        yield f"See also [{escaped(printable(name))}]({quote(os.fsencode(name))})."


def _studies(paths: Sequence[Path], warnings: list[str]) -> list[Study]:
    found = [folder for path in paths for folder in run_folders.runs_and_studies(path)]
    studies = []
    for folder in dict.fromkeys(path.resolve() for path in found if is_study(path)):
        try:
            studies.append(read_study(folder))
        except UserError as error:
            warnings.append(str(error))
    return studies


def _search(study: Study) -> Section:
    charts = [
        Chart(name, name, text, f"{name}: {text}", False, ax)
        for name, text, ax in search_figures.search_figures(study)
    ]
    title = printable(f"Search: {study.plan.recipe} ({study.folder.name})")
    return Section(title, search_figures.headline(study), charts)


def _drawings(sections: Sequence[Section], kinds: Sequence[str]) -> Files:
    """Draw each figure in every format, under a name that is free."""
    files: Files = {}
    explained = set[tuple[str, str]]()
    for section in sections:
        for chart in section.charts:
            chart.stem = f"figures/{_file_name(section.title)}/{_file_name(chart.name)}"
            while f"{chart.stem}.svg" in files:
                chart.stem += "-2"
            files |= {f"{chart.stem}.{kind}": drawn(chart.ax, kind) for kind in kinds}
            if (explanation := (chart.name, chart.caption)) in explained:
                chart.caption = ""  # the first figure of its name has it
            explained.add(explanation)
    return files


def _file_name(title: str) -> str:
    plain = re.sub(r"\W+", "-", title.lower()).strip("-")
    return plain.encode()[:80].decode(errors="ignore")  # a file's name is bytes


def _templates() -> dict[str, jinja2.Template]:
    """The templates of the report's pages."""
    pages = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=jinja2.select_autoescape(["html"]),
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    pages.filters["escaped"] = escaped
    return {MARKDOWN: pages.get_template("page.md"), PAGE: pages.get_template("page.html")}
