"""A table as text, as LaTeX and as Markdown, and the texts of its numbers."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

_MARKDOWN = str.maketrans({"&": "&amp;", **{char: f"\\{char}" for char in "\\|*_`[]<>#"}})

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
        """For pdfLaTeX with booktabs: numbers to the right, what stands out bold, the notes."""
        rows = self.rows.map(latex)
        for row, column in self.strong:
            rows.loc[row, column] = rf"\textbf{{{rows.loc[row, column]}}}"
        rows.columns = pd.Index(map(latex, rows.columns))
        how = "lll" + "r" * (len(rows.columns) - 3)
        table = rows.to_latex(index=False, escape=False, column_format=how)
        notes = [rf"\par{{\footnotesize {latex(note)}}}" for note in self.notes]
        return "\n".join([r"% needs \usepackage{booktabs}", table.strip(), *notes]) + "\n"


def latex(text: str) -> str:
    """Text that pdfLaTeX sets as it is; a letter that its fonts lack as its code point."""
    known = (
        c if c in "–…√−" or ord(c) < 0x180 or ord(c) in _LATEX else f"[U+{ord(c):04X}]"
        for c in text
    )
    return "".join(known).translate(_LATEX)


def escaped(text: str) -> str:
    """Text that Markdown shows as it is."""
    return text.translate(_MARKDOWN)


def fixed(values: pd.Series[float], digits: int, sign: str = "") -> pd.Series[str]:
    texts = values.map(lambda value: f"{value:{sign}.{digits}f}".replace("-", "−"))
    return texts.where(values.notna(), "–")


def means(means: pd.Series[float], sds: pd.Series[float], digits: int) -> pd.Series[str]:
    texts = fixed(means, digits)
    return texts.where(sds.isna(), texts + " ± " + fixed(sds, digits))
