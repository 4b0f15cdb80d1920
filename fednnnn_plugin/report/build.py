"""From folders of runs and studies to a report: tables, figures and the page, in one folder."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import jinja2
import pandas as pd
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.report import tables
from fednnnn_plugin.report.charts import condition_charts
from fednnnn_plugin.report.groups import SINGLE_CLIENT, arrange, value_text
from fednnnn_plugin.report.runs import Run, layers, printable, read_folders, tidy
from fednnnn_plugin.report.search import headline, search_figures, trials_table
from fednnnn_plugin.report.study import Study, is_study, read_study
from fednnnn_plugin.report.style import Look, looks, save, themes

PAGE, MANIFEST = "index.html", ".fednnnn-report"
FORMATS = ("svg", "pdf", "png")
PIXELS_PER_POINT = 1.6


@dataclass(frozen=True)
class Report:
    """The tables for a terminal, the HTML page, and a line for each thing worth knowing."""

    text: str
    page: Path
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Section:
    """A condition's or a study's figures: each a title, caption, alt text, stem and drawing."""

    title: str
    headline: str
    figures: list[dict[str, object]]
    trials: pd.DataFrame | None = None


def build_report(
    paths: Sequence[Path],
    out: Path,
    *,
    layers: Sequence[str] = (),
    target: float | None = None,
    formats: Sequence[str] = (),
) -> Report:
    """Read the folders of runs and of studies, and write their report.

    What an earlier report left in ``out`` is replaced; nothing else in it is touched.

    Args:
        paths: run folders, study folders, or folders of them.
        out: where to write; made if missing.
        layers: modules whose norms to show; the paper's where empty.
        target: an accuracy in (0, 1]; with it, a table of the rounds that reach it.
        formats: of the figures, beside SVG: ``pdf``, ``png``.

    Raises:
        UserError: no study and no run with a recorded round, a target that is no accuracy, a
            format that is none, or an ``out`` that holds files of others in our files' places.
        OSError: ``out`` cannot be written.
    """
    if target is not None and not 0.0 < target <= 1.0:
        raise UserError(f"--target: {target:g} is not allowed; it must be above 0 and at most 1")
    for name in set(formats) - set(FORMATS):
        raise UserError(f"--format: {name} is not allowed; it must be of {', '.join(FORMATS)}")
    files = _Files(out, dict.fromkeys(("svg", *formats)))
    runs, warnings = read_folders(paths)
    studies = list(_studies(paths, warnings))
    rounds = tidy(runs)
    if not len(rounds) and not studies:
        raise UserError("\n".join([*warnings, "no run with a recorded round was given"]))
    warnings += _unknown_layers(layers, rounds)
    arranged = arrange(rounds, warnings) if len(rounds) else rounds
    shown: list[tables.Table] = []
    sections: list[Section] = []
    if len(rounds):
        files.write("rounds.csv", rounds.to_csv(index=False))
        numbers = tables.accuracy(arranged)
        shown.append(files.table("accuracy", tables.accuracy_table(numbers, _judged(arranged)), numbers))
        if target is not None:
            numbers_to = tables.rounds_to(arranged, target)
            table = tables.rounds_table(numbers_to, target)
            shown.append(files.table("rounds-to-accuracy", table, numbers_to))
        sections += _conditions(arranged, numbers, layers, files)
    sections += [_search(study, files) for study in studies]
    listing = tables.runs_table(runs, arranged)
    files.write("report.md", _markdown(shown, sections, listing, warnings))
    files.write(PAGE, _page(runs, arranged, shown, sections, listing, warnings))
    files.finish()
    texts = [table.text() for table in shown]
    texts += [f"{s.title}\n\n{s.headline}\n" for s in sections if s.trials is not None]
    return Report("\n".join(texts), out / PAGE, tuple(warnings))


class _Files:
    """The report's folder: a hidden list says which of its files are a report's."""

    def __init__(self, out: Path, formats: Sequence[str] | dict[str, None]) -> None:
        self.out, self.formats = out, tuple(formats)
        manifest = out / MANIFEST
        old = manifest.read_text("utf-8").splitlines() if manifest.is_file() else []
        self._old = {name for name in old if ".." not in Path(name).parts and name[:1] != "/"}
        self._new: dict[str, None] = {}
        self.place(PAGE)

    def place(self, name: str) -> Path:
        """Where a file goes, listed before it is written.

        Raises:
            UserError: somebody else's file stands there.
        """
        path = self.out / name
        if name not in self._new and name not in self._old and path.exists():
            raise UserError(f"--out: {printable(path)} is not of a report: remove it, or name another folder")
        self._new[name] = None
        path.parent.mkdir(parents=True, exist_ok=True)
        self._list(self._old | set(self._new))
        return path

    def write(self, name: str, text: str) -> None:
        self.place(name).write_text(text, encoding="utf-8")

    def table(self, name: str, table: tables.Table, numbers: pd.DataFrame) -> tables.Table:
        for suffix, text in (("txt", table.text()), ("md", table.markdown()), ("tex", table.latex())):
            self.write(f"{name}.{suffix}", text)
        self.write(f"{name}.csv", numbers.to_csv(index=False))
        return table

    def figure(self, stem: str, figure: Figure) -> str:
        """Write a figure in every format, under a name that is free; return its name."""
        plain = "/".join(re.sub(r"[^\w]+", "-", p.lower()).strip("-")[:80] for p in stem.split("/"))
        free, number = plain, 2
        while f"{free}.svg" in self._new:
            free, number = f"{plain}-{number}", number + 1
        for kind in self.formats:
            save(figure, self.place(f"{free}.{kind}"))
        return free

    def finish(self) -> None:
        """Remove what only an earlier report had."""
        for name in self._old - set(self._new):
            (self.out / name).unlink(missing_ok=True)
        for folder in {(self.out / name).parent for name in self._old} - {self.out}:
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
        self._list(self._new)

    def _list(self, names: Sequence[str] | set[str] | dict[str, None]) -> None:
        (self.out / MANIFEST).write_text("\n".join(sorted(names)) + "\n", encoding="utf-8")


def _studies(paths: Sequence[Path], warnings: list[str]) -> Iterator[Study]:
    folders = []
    for path in paths:
        inside = sorted(path.iterdir()) if path.is_dir() and not is_study(path) else [path]
        folders += [folder for folder in inside if is_study(folder)]
    for folder in dict.fromkeys(map(Path.resolve, folders)):
        try:
            study = read_study(folder)
        except UserError as error:
            warnings.append(str(error))
            continue
        warnings += study.warnings
        yield study


def _unknown_layers(wanted: Sequence[str], rounds: pd.DataFrame) -> list[str]:
    known = layers(rounds)
    return [
        f"--layer {printable(name)}: no run recorded it; recorded are {', '.join(known) or 'none'}"
        for name in wanted
        if name not in known
    ]


def _judged(runs: pd.DataFrame) -> str:
    held_out = runs.get("validation_fraction", pd.Series(0.0, runs.index)).fillna(0.0) > 0.0
    if held_out.all():
        return "images held out of training"
    return "the test set" + (", or on images held out where it says so" if held_out.any() else "")


def _conditions(
    arranged: pd.DataFrame, numbers: pd.DataFrame, modules: Sequence[str], files: _Files
) -> Iterator[Section]:
    for (data, condition), runs in arranged.groupby(["data", "condition"], sort=False):
        alone = arranged["dealt"] == SINGLE_CLIENT
        references = arranged[alone & (arranged["data"] == data)]
        found = []
        for chart in condition_charts(runs, references, modules):
            stem = files.figure(f"figures/{data} {condition}/{chart.name}", chart.figure)
            found.append(_figure(files, stem, chart.title, chart.caption, chart.alt, chart.wide))
        own = numbers[(numbers["data"] == data) & (numbers["condition"] == condition)]
        yield Section(f"{data}: {condition}", tables.headline(own), found)


def _search(study: Study, files: _Files) -> Section:
    name = f"{study.plan.recipe} ({study.folder.name})"
    found = []
    for step, caption, figure in search_figures(study):
        stem = files.figure(f"figures/search {study.folder.name}/{step}", figure)
        alt = f"Search {step}. {caption}"
        found.append(_figure(files, stem, step, caption, alt, wide=False))
    return Section(f"Search: {printable(name)}", headline(study), found, trials_table(study))


def _figure(
    files: _Files, stem: str, title: str, caption: str, alt: str, wide: bool
) -> dict[str, object]:
    drawing = (files.out / f"{stem}.svg").read_text("utf-8")
    svg = inline_svg(drawing, stem.replace("/", "-") + "-", alt)
    kinds = list(files.formats)
    return {"title": title, "caption": caption, "alt": alt, "stem": stem, "wide": wide,
            "svg": svg, "kinds": kinds}  # fmt: skip


def inline_svg(drawing: str, prefix: str, alt: str) -> Markup:
    """An SVG file of ours as an element of the page.

    Its identifiers get a prefix, so that no two figures share one; its colours become the page's,
    which differ in the dark; and it gets a text for those who do not see it.
    """
    svg = re.sub(r"<metadata>.*?</metadata>", "", drawing[drawing.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r'\b(id="|xlink:href="#|url\(#)', rf"\g<1>{prefix}", svg)
    colors = themes()
    svg = re.sub(r"#[0-9a-f]{6}", lambda match: colors.get(match[0], match[0]), svg)
    box = re.search(r'viewBox="([-0-9. ]+)"', svg)
    assert box
    width = float(box[1].split()[2]) * PIXELS_PER_POINT
    head = f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="{box[1]}" role="img"'
    head += f' style="max-width: {width:.0f}px" aria-label="{escape(alt)}">'
    return Markup(head + svg[svg.index(">") + 1 :].strip())


def _markdown(
    shown: Sequence[tables.Table],
    sections: Sequence[Section],
    listing: tables.Table,
    warnings: Sequence[str],
) -> str:
    """The report as one Markdown file with links to its figures."""
    parts = ["# FedNNNN report", *(table.markdown() for table in shown)]
    for section in sections:
        parts += [f"## {section.title}", section.headline]
        for figure in section.figures:
            parts.append(f"![{figure['title']}]({figure['stem']}.svg)\n\n{figure['caption']}")
    parts += [f"## Runs\n\n{listing.markdown()}"] * (len(listing.rows) > 0)
    parts += ["## Left out or worth knowing"] * bool(warnings)
    parts += ["\n".join(f"- {printable(warning)}" for warning in warnings)]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _page(
    runs: Sequence[Run],
    arranged: pd.DataFrame,
    shown: Sequence[tables.Table],
    sections: Sequence[Section],
    listing: tables.Table,
    warnings: Sequence[str],
) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    lines = arranged.drop_duplicates(["data", "condition", "label"]) if len(runs) else arranged
    by_condition: list[Look] = []
    for _, members in lines.groupby(["data", "condition"], sort=False) if len(lines) else ():
        by_condition += looks(members).values()
    counts = [(len(runs), "run"), (len(sections), "section")]
    if len(lines):
        counts = [(len(runs), "run"), (lines.groupby(["data", "condition"]).ngroups, "condition")]
        counts += [(lines["method"].nunique(), "method"), (arranged["seed"].nunique(), "seed")]
    unfinished = sum(not run.finished for run in runs)
    facts = [f"{count} {noun}{'s' * (count != 1)}" for count, noun in counts]
    return environment.get_template("page.html").render(
        facts=facts + [f"{unfinished} unfinished"] * bool(unfinished),
        themes=themes(),
        tables=shown,
        stems=["accuracy", "rounds-to-accuracy"],
        looks=by_condition,
        sections=sections,
        listing=listing,
        settings=_settings(runs),
        warnings=[printable(warning) for warning in warnings],
        version=version("fednnnn-plugin"),
    )


def _settings(runs: Sequence[Run]) -> list[tuple[str, list[tuple[str, str, bool]]]]:
    """For each run its settings, and whether the runs differ in them."""
    names = dict.fromkeys(name for run in runs for name in run.settings)
    absent = object()
    differs = {
        name: len({repr(run.settings.get(name, absent)) for run in runs}) > 1 for name in names
    }
    found = []
    for run in runs:
        rows = [(name, value_text(v), differs[name]) for name, v in run.settings.items()]
        rows += [(f"summary: {name}", value_text(v), False) for name, v in run.summary.items()]
        found.append((run.name, rows))
    return found
