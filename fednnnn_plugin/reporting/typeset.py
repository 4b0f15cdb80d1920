"""A table as text and as LaTeX, and text that Markdown and LaTeX show as it is."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pandas as pd

# What Markdown, or GitHub's, takes for more than text: marks, HTML, links, mentions, emoji, lists.
_MARKED = re.compile(r"[\\|*_`\[\]<>#~$&@!]|:(?=//|\w+:)|(?<=www)\.|^[-+=](?=[-=\s]|$)")
_NUMBERED = re.compile(r"^(\d+)(?=[.)](\s|$))")
_LATEX = str.maketrans(
    {char: f"\\{char}" for char in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"β": r"$\beta$", "γ": r"$\gamma$", "μ": r"$\mu$", "η": r"$\eta$", "λ": r"$\lambda$"}
    | {"α": r"$\alpha$", "τ": r"$\tau$", "ε": r"$\varepsilon$", "±": r"$\pm$", "×": r"$\times$"}
    | {"−": "$-$", "<": "$<$", ">": "$>$", "–": "--", "…": r"\dots{}", "√": r"$\surd$"}
)


@dataclass(frozen=True)
class Table:
    """Numbers, and the same as texts below data set, condition and method.

    ``strong`` are (row, column) of the cells that stand out, ``notes`` lines to print below.
    """

    title: str
    numbers: pd.DataFrame
    rows: pd.DataFrame
    strong: frozenset[tuple[int, str]] = frozenset()
    notes: tuple[str, ...] = ()

    def starts(self) -> list[bool]:
        """For each row whether it begins a condition."""
        return list(~self.rows.iloc[:, :2].duplicated())

    def text(self) -> str:
        """For a terminal: a condition is named once."""
        shown = self.rows.copy()
        shown.loc[[not starts for starts in self.starts()], shown.columns[:2]] = ""
        for column in shown.columns[:3]:
            width = max(shown[column].str.len().max(), len(column))
            shown[column] = shown[column].str.ljust(width)
            shown = shown.rename(columns={column: column.ljust(width)})
        return "\n".join([f"{self.title}\n", shown.to_string(index=False), "", *self.notes]) + "\n"

    def latex(self) -> str:
        """For pdfLaTeX with booktabs: numbers to the right, what stands out bold, notes below."""
        rows = self.rows.map(latex)
        for row, column in self.strong:
            rows.loc[row, column] = rf"\textbf{{{rows.loc[row, column]}}}"
        rows.columns = pd.Index(map(latex, rows.columns))
        rows.iloc[:, 0] = "{}" + rows.iloc[:, 0]  # after \\ a bracket or a star is an argument
        how = "lll" + "r" * (len(rows.columns) - 3)
        table = rows.to_latex(index=False, escape=False, column_format=how)
        below = f"{self.title}.", *self.notes
        notes = [rf"\par{{\footnotesize {latex(note)}}}" for note in below]
        return "\n".join([r"% needs \usepackage{booktabs}", table.strip(), *notes]) + "\n"


def latex(text: str) -> str:
    """Text that pdfLaTeX sets as it is; a letter that its fonts lack as its code point."""
    known = (
        c if c in "–…√−" or ord(c) < 0x180 or ord(c) in _LATEX else f"[U+{ord(c):04X}]"
        for c in text
    )
    apart = re.sub(r"([-`'?!])(?=[-`'])", r"\1\0", "".join(known))  # no dashes, no other marks
    return apart.translate(_LATEX).replace("\0", "{}")


def escaped(text: object) -> str:
    """Text that Markdown shows as it is, also at the beginning of a line."""
    return _NUMBERED.sub(r"\1\\", _MARKED.sub(r"\\\g<0>", str(text).strip()))


def fixed(values: pd.Series[float], digits: int, sign: str = "") -> pd.Series[str]:
    rounded = values.round(digits) + 0.0  # no -0.0
    texts = rounded.map(lambda value: f"{value:{sign}.{digits}f}".replace("-", "−"))
    return texts.where(values.notna(), "–")
