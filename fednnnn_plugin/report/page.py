"""The report as one HTML page: everything inline, nothing loaded from anywhere."""

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from fednnnn_plugin.report import style
from fednnnn_plugin.report.groups import Group, value_text
from fednnnn_plugin.report.listing import COLUMNS, run_cells
from fednnnn_plugin.report.runs import Run
from fednnnn_plugin.report.style import LineStyle
from fednnnn_plugin.report.tables import Cell, Table

_TEMPLATE = Path(__file__).parent / "template"
PIXELS_PER_POINT = 1.65
# Colours of the figures by the name of the page's variable, which differs in the dark.
_THEMED = {
    style.INK: "ink",
    style.MUTED: "muted",
    style.GRID: "grid",
    style.PAPER: "panel",
    style.REFERENCE.color: "reference",
    style.BLACK: "black",
    style.ORANGE: "orange",
    style.SKY_BLUE: "sky-blue",
    style.GREEN: "green",
    style.BLUE: "blue",
    style.VERMILION: "vermilion",
    style.PURPLE: "purple",
}


@dataclass(frozen=True)
class Figure:
    """A figure on the page: an SVG drawing, and where its files lie."""

    title: str
    caption: str
    alt: str
    stem: str
    wide: bool
    drawing: str


@dataclass(frozen=True)
class Section:
    """The figures of one condition or of one search.

    Args:
        title: its heading.
        name: a short one, for the link to it.
        headline: what to take away from it; may be empty.
        figures: what to show.
        table: its numbers, one line each, to sort; None where there are none.
    """

    title: str
    name: str
    headline: str
    figures: tuple[Figure, ...]
    table: Table | None = None


class _Row(list[Cell]):
    """A run's cells, and the anchor of its settings."""

    def __init__(self, cells: Sequence[Cell], anchor: str) -> None:
        super().__init__(cells)
        self.anchor = anchor


def render_page(
    runs: Sequence[Run],
    groups: Sequence[Group],
    accuracy: Table,
    rounds: Table | None,
    looks: Sequence[LineStyle],
    sections: Sequence[Section],
    warnings: Sequence[str],
) -> str:
    """The page's HTML.

    Args:
        runs: every run read, also those that count in no table.
        groups: the groups that the tables and figures show.
        accuracy, rounds: the tables, one row a group each.
        looks: a line style for each of their rows.
        sections: the figures, by condition and by search.
        warnings: lines on what was left out.
    """
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATE), autoescape=True, undefined=StrictUndefined
    )
    environment.filters["themed"] = _themed
    script = (_TEMPLATE / "page.js").read_text(encoding="utf-8")
    anchors = {run.name: f"run-{number}" for number, run in enumerate(runs, 1)}
    return environment.get_template("page.html").render(
        title="FedNNNN report",
        facts=_facts(runs, groups, sections),
        # Our own files, from the package.
        style=Markup((_TEMPLATE / "page.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        version=_version(),
        warnings=warnings,
        accuracy=accuracy,
        rounds=rounds,
        accuracy_looks=looks,
        sections=[
            {
                "anchor": f"section-{number}",
                "title": section.title,
                "name": section.name,
                "headline": section.headline,
                "table": section.table,
                "figures": [
                    {
                        "title": figure.title,
                        "caption": figure.caption,
                        "stem": figure.stem,
                        "wide": figure.wide,
                        "svg": inline_svg(figure.drawing, f"f{number}-{index}-", figure.alt),
                    }
                    for index, figure in enumerate(section.figures, 1)
                ],
            }
            for number, section in enumerate(sections, 1)
        ],
        run_columns=[name for name, _ in COLUMNS],
        run_numeric={index for index, (_, numeric) in enumerate(COLUMNS) if numeric},
        run_rows=[_Row(run_cells(run), anchors[run.name]) for run in runs],
        settings=_settings(runs, anchors),
    )


def inline_svg(drawing: str, prefix: str, alt: str) -> Markup:
    """An SVG file as an element of the page.

    Its identifiers get a prefix, so that no two figures share one; its colours become the page's,
    which differ in the dark; and it gets a text for those who do not see it.

    Args:
        drawing: an SVG file as matplotlib writes it, from a drawing of ours.
        prefix: of the identifiers.
        alt: the text.
    """
    svg = drawing[drawing.index("<svg") :]
    svg = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\b(id="|xlink:href="#|url\(#)', rf"\g<1>{prefix}", svg)
    svg = re.sub(r"#[0-9a-f]{6}", lambda match: _themed(match[0]), svg)
    box = re.search(r'viewBox="([-0-9. ]+)"', svg)
    if box is None:
        raise ValueError("an SVG drawing without a viewBox")
    body = svg[svg.index(">") + 1 :]
    # One size of text in all figures, however wide they are.
    width = float(box[1].split()[2]) * PIXELS_PER_POINT
    head = f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="{box[1]}" role="img"'
    head += f' style="max-width: {width:.0f}px"'
    return Markup(f'{head} aria-label="{escape(alt)}">{body.strip()}')


def _themed(color: str) -> str:
    name = _THEMED.get(color)
    return color if name is None else f"var(--{name})"


def _facts(runs: Sequence[Run], groups: Sequence[Group], sections: Sequence[Section]) -> list[str]:
    counts = [
        (len(runs), "run"),
        (len({group.condition for group in groups}), "condition"),
        (len({group.method for group in groups}), "method"),
        (len({run.seed for run in runs}), "seed"),
    ]
    searches = sum(section.table is not None for section in sections)
    facts = [_count(count, noun) for count, noun in counts] if runs else []
    facts += [_count(searches, "search")] if searches else []
    unfinished = sum(not run.finished for run in runs)
    return [*facts, f"{unfinished} unfinished"] if unfinished else facts


def _count(count: int, noun: str) -> str:
    ending = "" if count == 1 else "es" if noun.endswith("ch") else "s"
    return f"{count} {noun}{ending}"


def _settings(runs: Sequence[Run], anchors: Mapping[str, str]) -> list[dict[str, object]]:
    values: dict[str, set[str]] = {}
    for run in runs:
        for name, value in run.settings.items():
            values.setdefault(name, set()).add(repr(value))
    shown: list[dict[str, object]] = []
    for run in runs:
        sections: dict[str, list[tuple[str, str, bool]]] = {}
        for name, value in run.settings.items():
            section, _, key = name.rpartition(".")
            # Given in some runs only counts as a difference, as another value does.
            held = sum(name in other.settings for other in runs)
            differs = len(values[name]) > 1 or held < len(runs)
            sections.setdefault(section or "recipe", []).append((key, value_text(value), differs))
        outcome = [(key, value_text(value), False) for key, value in run.summary.items()]
        if outcome:
            sections["summary"] = outcome
        shown.append(
            {"name": run.name, "anchor": anchors[run.name], "sections": list(sections.items())}
        )
    return shown


def _version() -> str:
    try:
        return version("fednnnn-plugin")
    except PackageNotFoundError:
        return "(not installed)"
