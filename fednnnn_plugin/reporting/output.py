"""A report's folder, in which files of others are left alone."""

from __future__ import annotations

from pathlib import Path

from fednnnn_plugin.errors import UserError, printable
from fednnnn_plugin.files import break_off, write_atomically

_MANIFEST = ".fednnnn-report"

Files = dict[str, bytes]  # by their place in the report's folder


def replace_report(out: Path, files: Files) -> None:
    """Write a report's files, and remove those of an earlier report that it does not have.

    A hidden list says which files of the folder are a report's.

    Raises:
        UserError: a link or a file of others is in the way; nothing was written.
    """
    manifest = out / _MANIFEST
    listed = manifest.read_text("utf-8", "replace").splitlines() if manifest.is_file() else []
    old = {name for name in listed if out.resolve() in (out / name).resolve().parents}
    folders = {out, *(folder for name in files for folder in (out / name).parents)}
    ours = [manifest, *(out / name for name in old | files.keys())]
    inside = {folder for path in ours for folder in path.relative_to(out).parents} - {Path()}
    for path in (*(out / folder for folder in inside), *ours):
        if path.is_symlink():
            raise UserError(f"--out: {printable(path)}: a link: remove it, or name another folder")
    in_the_way = [folder for folder in folders if folder.exists() and not folder.is_dir()]
    in_the_way += [out / name for name in files.keys() - old if (out / name).exists()]
    if in_the_way:
        where = printable(min(in_the_way))
        raise UserError(f"--out: {where} is of no report: remove it, or name another folder")
    out.mkdir(parents=True, exist_ok=True)
    break_off(manifest)
    with manifest.open("a", encoding="utf-8") as claimed:
        for name, content in files.items():
            claimed.write(f"\n{name}")  # first: what a full disk cuts off is a report's
            claimed.flush()
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(out / name, content)
    for name in old - files.keys():
        (out / name).unlink(missing_ok=True)
        folder = (out / name).parent
        if folder != out and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    write_atomically(manifest, "\n".join(sorted(files)).encode())
