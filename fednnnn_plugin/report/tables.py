"""A table, and its four renderings: terminal, Markdown, CSV and LaTeX."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from fednnnn_plugin.report.printable import printable


@dataclass(frozen=True)
class Cell:
    """What is shown, the exact value behind it, and whether it stands out."""

    text: str
    value: str | int | float | None = None
    strong: bool = False


@dataclass(frozen=True)
class Table:
    """Rows under named columns.

    Args:
        title: what the table shows, with its unit.
        columns: headings.
        rows: as many cells as columns each.
        numeric: which columns are aligned to the right.
        groups: how many of the leading columns name a group: repeated names are left blank, and
            a rule separates groups where a document has rules.
        notes: lines to print below.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numeric: frozenset[int] = frozenset()
    groups: int = 0
    notes: tuple[str, ...] = ()

    def starts_group(self, index: int) -> bool:
        """Whether a row begins a new group."""
        key = [cell.text for cell in self.rows[index][: self.groups]]
        return index == 0 or key != [cell.text for cell in self.rows[index - 1][: self.groups]]

    def shown(self, index: int) -> list[str]:
        """A row's texts, with the names of a group in its first row only."""
        texts = [printable(cell.text) for cell in self.rows[index]]
        if self.starts_group(index):
            return texts
        same = self.groups
        for column in range(self.groups):
            if texts[column] != printable(self.rows[index - 1][column].text):
                same = column
                break
        return [""] * same + texts[same:]

    def text(self) -> str:
        """For a terminal: aligned columns of plain text."""
        body = [self.shown(i) for i in range(len(self.rows))]
        widths = [max(map(len, column)) for column in zip(self.columns, *body, strict=True)]

        def line(cells: Sequence[str]) -> str:
            aligned = (
                cell.rjust(width) if i in self.numeric else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
            )
            return "  ".join(aligned).rstrip()

        lines = [self.title, "", line(self.columns), line(["─" * width for width in widths])]
        for index, cells in enumerate(body):
            if index and self.groups and self.starts_group(index):
                lines.append("")
            lines.append(line(cells))
        return "\n".join([*lines, *([""] if self.notes else []), *self.notes]) + "\n"

    def markdown(self) -> str:
        """A pipe table; every group name repeated, as Markdown has no rules between rows."""

        def line(cells: Sequence[str]) -> str:
            return "| " + " | ".join(cells) + " |"

        rule = ["---:" if i in self.numeric else "---" for i in range(len(self.columns))]
        lines = [f"**{_markdown(self.title)}**", "", line(self.columns), line(rule)]
        for row in self.rows:
            texts = (_markdown(cell.text) for cell in row)
            cells = zip(texts, row, strict=True)
            lines.append(line([f"**{text}**" if cell.strong else text for text, cell in cells]))
        for note in self.notes:
            lines += ["", _markdown(note)]
        return "\n".join(lines) + "\n"

    def latex(self) -> str:
        """A ``booktabs`` table: the best of each condition bold, as the paper sets them."""
        align = "".join("r" if i in self.numeric else "l" for i in range(len(self.columns)))
        lines = [
            "% Needs \\usepackage{booktabs}.",
            "\\begin{table}[t]",
            f"\\caption{{{_latex(self.title)}}}",
            "\\centering",
            f"\\begin{{tabular}}{{{align}}}",
            "\\toprule",
            " & ".join(_latex(column) for column in self.columns) + " \\\\",
        ]
        for index, row in enumerate(self.rows):
            if self.starts_group(index) or not index:
                lines.append("\\midrule")
            cells = zip(self.shown(index), row, strict=True)
            texts = [f"\\textbf{{{_latex(t)}}}" if c.strong else _latex(t) for t, c in cells]
            lines.append(" & ".join(texts) + " \\\\")
        lines += ["\\bottomrule", "\\end{tabular}"]
        lines += [f"\n\\smallskip\\footnotesize {_latex(note)}" for note in self.notes]
        return "\n".join([*lines, "\\end{table}"]) + "\n"


def csv_text(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Comma-separated values, floats to the last bit, an empty field where there is no value."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue()


_MARKDOWN = str.maketrans({char: "\\" + char for char in "\\|*_`[]<>#"} | {"&": "&amp;", "\n": " "})
_LATEX = str.maketrans(
    {
        "\\": "\\textbackslash{}",
        "~": "\\textasciitilde{}",
        "^": "\\textasciicircum{}",
        **{char: "\\" + char for char in "&%$#_{}"},
        "±": "$\\pm$",
        "−": "$-$",
        "×": "$\\times$",
        "–": "--",
        ">": "$>$",
        "<": "$<$",
        "β": "$\\beta$",
        "γ": "$\\gamma$",
        "μ": "$\\mu$",
        "η": "$\\eta$",
        "λ": "$\\lambda$",
        "τ": "$\\tau$",
        "ε": "$\\epsilon$",
        "…": "\\ldots{}",
        "\n": " ",
    }
)


def _markdown(text: str) -> str:
    return printable(text).translate(_MARKDOWN)


def _latex(text: str) -> str:
    return printable(text).translate(_LATEX)
