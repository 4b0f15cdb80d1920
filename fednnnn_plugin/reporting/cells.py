"""CSV of text that others wrote: no cell that a spreadsheet would compute."""

import re
from contextlib import suppress

import pandas as pd

_FORMULA = re.compile(r"\s*[=+\-@\t＝＋－＠]")


def as_csv(table: pd.DataFrame, *, index: bool = False) -> bytes:
    """Return a table as CSV; text that a spreadsheet would compute begins with an apostrophe.

    Names and settings are those of the run folders, which others may have written: OWASP's rule
    against CSV injection. Numbers stay numbers, also those that stand there as text.
    """
    text = table.select_dtypes(exclude="number")
    inert = table.assign(**{name: text[name].map(_inert) for name in text})
    return inert.rename(columns=_inert).to_csv(index=index).encode()


def _inert(cell: object) -> object:
    if not isinstance(cell, str):
        return cell
    cell = cell.replace("\r", " ")  # Python's writers leave it unquoted: a line to others
    if not _FORMULA.match(cell):
        return cell
    with suppress(ValueError):
        float(cell)
        return cell
    return f"'{cell}"
