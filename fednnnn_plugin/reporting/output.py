"""A report's folder, in which files of others are left alone."""

import os
import shutil
from pathlib import Path
from tempfile import mkdtemp

from fednnnn_plugin.errors import OVERWRITE, UserError, printable
from fednnnn_plugin.files import errors_named, is_writable
from fednnnn_plugin.reporting.arguments import OUT

Files = dict[str, bytes]  # by their place in the report's folder

PAGE = "index.html"
MARKDOWN = "README.md"  # what a repository shows of a folder
TITLE = "# FedNNNN report"  # its first line
_TABLES = ("accuracy", "rounds-to-accuracy")
_PARTS = (
    PAGE,
    MARKDOWN,
    "figures",
    "rounds.csv",
    *(f"{t}.{k}" for t in _TABLES for k in ("csv", "tex")),
)


def check_free(out: Path, *, overwrite: bool) -> None:
    """Refuse a folder with files of a report's names, unless to ``overwrite`` a report."""
    where = printable(out)
    if out.exists() and not out.is_dir():
        raise UserError(OUT, f"{where}: is no folder")
    if not is_writable(out / PAGE):
        raise UserError(OUT, f"{where}: cannot be written to")
    there = [name for name in _PARTS if os.path.lexists(out / name)]
    if there and not (overwrite and _is_report(out)):
        remedy = f"name another folder; only a report is replaced, with {OVERWRITE}"
        raise UserError(OUT, f"{where}: {there[0]} is there already", remedy)


def write_report(out: Path, files: Files) -> None:
    """Write a report's files in the place of an earlier report's, once all are on the disk."""
    out.mkdir(parents=True, exist_ok=True)
    new = Path(mkdtemp(prefix=".fednnnn-report-", dir=out))
    try:
        for name, content in files.items():
            with errors_named(out / name):
                (new / name).parent.mkdir(parents=True, exist_ok=True)
                (new / name).write_bytes(content)
        # First, so that the folder is a report's and can be replaced if this is killed.
        (new / MARKDOWN).replace(out / MARKDOWN)
        for name in set(_PARTS) - {MARKDOWN}:
            old = out / name
            if old.is_dir() and not old.is_symlink():
                shutil.rmtree(old)
            else:
                old.unlink(missing_ok=True)
        for part in new.iterdir():
            part.rename(out / part.name)
    finally:
        shutil.rmtree(new)


def _is_report(out: Path) -> bool:
    page = out / MARKDOWN
    if not page.is_file():
        return False
    with page.open("rb") as file:
        return file.readline(100).strip() == TITLE.encode()
