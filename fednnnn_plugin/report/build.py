"""From folders of runs and studies to a report: tables, figures and the page, in one folder."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup, escape
from matplotlib.axes import Axes

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.report import runs as run_folders
from fednnnn_plugin.report import search, tables
from fednnnn_plugin.report.charts import condition_charts
from fednnnn_plugin.report.groups import SINGLE_CLIENT, arrange, differing, value_text
from fednnnn_plugin.report.runs import printable
from fednnnn_plugin.report.study import Study, is_study, read_study
from fednnnn_plugin.report.style import looks, save, themes

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
    """A condition's or a study's figures, and a study's trials."""

    title: str
    headline: str
    figures: list[dict[str, Any]]
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
    runs, warnings = run_folders.read_folders(paths)
    studies = list(_studies(paths, warnings))
    if runs.empty and not studies:
        raise UserError("\n".join([*warnings, "no run with a recorded round was given"]))
    files = _Files(out, sorted({"svg", *formats}, key=FORMATS.index))
    known = run_folders.layers(runs)
    for name in set(layers) - set(known):
        recorded = ", ".join(known) or "none"
        warnings.append(f"--layer {printable(name)}: no run recorded it; recorded are {recorded}")
    shown: dict[str, tables.Table] = {}
    sections: list[Section] = []
    page: dict[str, Any] = {"looks": [], "settings": None, "listing": None, "facts": []}
    if not runs.empty:
        files.write("rounds.csv", runs.to_csv(index=False))
        runs = arrange(runs, warnings)
        numbers = tables.accuracy(runs)
        files.write("accuracy.csv", numbers.to_csv(index=False))
        shown["accuracy"] = tables.accuracy_table(numbers, _judged(runs))
        if target is not None:
            rounds = tables.rounds_to(runs, target)
            files.write("rounds-to-accuracy.csv", rounds.to_csv(index=False))
            shown["rounds-to-accuracy"] = tables.rounds_table(rounds, target)
        sections += _conditions(runs, numbers, layers, files)
        page = _about(runs)
    sections += [_search(study, files) for study in studies]
    for name, table in shown.items():
        for kind in ("text", "markdown", "latex"):
            suffix = {"text": "txt", "markdown": "md", "latex": "tex"}[kind]
            files.write(f"{name}.{suffix}", getattr(table, kind)())
    warnings = [printable(warning) for warning in warnings]
    files.write("report.md", _markdown(shown.values(), sections, page["listing"], warnings))
    folder = jinja2.FileSystemLoader(Path(__file__).parent)
    template = jinja2.Environment(loader=folder, autoescape=True).get_template("page.html")
    made_by = version("fednnnn-plugin")
    page |= {"tables": shown, "sections": sections, "warnings": warnings, "version": made_by}
    files.write(PAGE, template.render(themes=themes(), **page))
    files.finish()
    texts = [table.text() for table in shown.values()]
    texts += [f"{s.title}\n\n{s.headline}\n" for s in sections if s.trials is not None]
    return Report("\n".join(texts), out / PAGE, tuple(warnings))


class _Files:
    """The report's folder: a hidden list says which of its files are a report's."""

    def __init__(self, out: Path, formats: Sequence[str]) -> None:
        self.out, self.formats = out, formats
        self._list = out / MANIFEST
        listed = self._list.read_text("utf-8").split("\n") if self._list.is_file() else []
        inside = (name for name in listed if (out / name).resolve().is_relative_to(out.resolve()))
        self._old, self._new = set(inside) - {""}, dict[str, None]()
        self.place(PAGE)

    def place(self, name: str) -> Path:
        """Where a file goes; it is listed before it is written.

        Raises:
            UserError: somebody else's file stands there.
        """
        path = self.out / name
        if name not in self._old and name not in self._new and path.exists():
            where = printable(path)
            raise UserError(f"--out: {where} is of no report: remove it, or name another folder")
        self._new[name] = None
        path.parent.mkdir(parents=True, exist_ok=True)
        self._list.write_text("\n".join(sorted(self._old | set(self._new))), encoding="utf-8")
        return path

    def write(self, name: str, text: str) -> None:
        self.place(name).write_text(text, encoding="utf-8")

    def figure(self, folder: str, name: str, ax: Axes, **shown: Any) -> dict[str, Any]:
        """Write a figure in every format, under a name that is free; what the page shows of it."""
        plain = [re.sub(r"\W+", "-", part.lower()).strip("-")[:80] for part in (folder, name)]
        stem = free = f"figures/{'/'.join(plain)}"
        number = 2
        while f"{free}.svg" in self._new:
            free, number = f"{stem}-{number}", number + 1
        for kind in self.formats:
            save(ax, self.place(f"{free}.{kind}"))
        drawing = (self.out / f"{free}.svg").read_text("utf-8")
        svg = inline_svg(drawing, free.replace("/", "-"), shown["alt"])
        return shown | {"stem": free, "svg": svg, "kinds": self.formats}

    def finish(self) -> None:
        """Remove what only an earlier report had."""
        for name in self._old - set(self._new):
            (self.out / name).unlink(missing_ok=True)
        for folder in {(self.out / name).parent for name in self._old} - {self.out}:
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
        self._list.write_text("\n".join(sorted(self._new)), encoding="utf-8")


def _studies(paths: Sequence[Path], warnings: list[str]) -> Iterator[Study]:
    folders: dict[Path, None] = {}
    for path in paths:
        inside = sorted(path.iterdir()) if path.is_dir() and not is_study(path) else [path]
        folders |= {folder.resolve(): None for folder in inside if is_study(folder)}
    for folder in folders:
        try:
            study = read_study(folder)
        except UserError as error:
            warnings.append(str(error))
        else:
            warnings += study.warnings
            yield study


def _judged(runs: pd.DataFrame) -> str:
    held_out = runs.get("validation_fraction", pd.Series(0.0, runs.index)).fillna(0.0) > 0.0
    if held_out.all():
        return "images held out of training"
    return "the test set" + " (where it says so, on images held out)" * bool(held_out.any())


def _conditions(
    arranged: pd.DataFrame, numbers: pd.DataFrame, modules: Sequence[str], files: _Files
) -> Iterator[Section]:
    for (data, condition), runs in arranged.groupby(["data", "condition"], sort=False):
        alone = arranged["dealt"] == SINGLE_CLIENT
        references = arranged[alone & (arranged["data"] == data)]
        title = f"{data}: {condition}"
        found = [
            files.figure(title, c.name, c.axes[0], title=c.title, caption=c.caption, alt=c.alt,
                         wide=c.wide)
            for c in condition_charts(runs, references, modules)
        ]  # fmt: skip
        own = numbers[(numbers["data"] == data) & (numbers["condition"] == condition)]
        yield Section(title, tables.headline(own), found)


def _search(study: Study, files: _Files) -> Section:
    title = printable(f"Search: {study.plan.recipe} ({study.folder.name})")
    found = [
        files.figure(
            title, name, figure, title=name, caption=text, alt=f"{name}: {text}", wide=False
        )
        for name, text, figure in search.search_figures(study)
    ]
    return Section(title, search.headline(study), found, search.trials_table(study))


def inline_svg(drawing: str, prefix: str, alt: str) -> Markup:
    """An SVG file of ours as an element of the page.

    Its identifiers get a prefix, so that no two figures share one; its colours become the page's,
    which differ in the dark; and it gets a text for those who do not see it.
    """
    svg = re.sub(r"<metadata>.*?</metadata>", "", drawing[drawing.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r'\b(id="|xlink:href="#|url\(#)', rf"\g<1>{prefix}-", svg)
    colors = themes()
    svg = re.sub(r"#[0-9a-f]{6}", lambda match: colors.get(match[0], match[0]), svg)
    box = svg.partition('viewBox="')[2].partition('"')[0]
    width = float(box.split()[2]) * PIXELS_PER_POINT
    head = f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="{box}" role="img"'
    head += f' style="max-width: {width:.0f}px" aria-label="{escape(alt)}">'
    return Markup(head + svg[svg.index(">") + 1 :].strip())


def _markdown(
    shown: Iterable[tables.Table],
    sections: Sequence[Section],
    listing: tables.Table | None,
    warnings: Sequence[str],
) -> str:
    """The report as one Markdown file with links to its figures."""
    parts = ["# FedNNNN report", *(table.markdown() for table in shown)]
    for section in sections:
        parts += [f"## {section.title}", section.headline]
        for figure in section.figures:
            parts.append(f"![{figure['title']}]({figure['stem']}.svg)\n\n{figure['caption']}")
    parts += [f"## Runs\n\n{listing.markdown()}"] if listing else []
    parts += ["## Left out or worth knowing", *(f"- {w}" for w in warnings)] if warnings else []
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _about(runs: pd.DataFrame) -> dict[str, Any]:
    """What the page tells of the runs: counts, looks of the lines, the list, the settings."""
    by_condition = runs.groupby(["data", "condition"], sort=False)
    heads = runs.drop_duplicates("run").set_index("run")
    counts = {"run": len(heads), "condition": by_condition.ngroups}
    counts |= {noun: heads[noun].nunique() for noun in ("method", "seed")}
    facts = [f"{count} {noun}{'s' * (count != 1)}" for noun, count in counts.items()]
    unfinished = int(heads["finished"].eq(False).sum())
    settings = heads[run_folders.setting_columns(runs)[4:]].astype(object)
    settings = settings.where(settings.notna(), None).map(value_text)
    differs = differing(settings.to_dict("records"), settings.columns)
    same = settings.drop(columns=differs).iloc[0].to_dict()
    return {
        "looks": [look for _, members in by_condition for look in looks(members).values()],
        "facts": facts + [f"{unfinished} unfinished"] * bool(unfinished),
        "listing": tables.runs_table(runs),
        "settings": settings[differs].reset_index(),
        "same": same,
    }
