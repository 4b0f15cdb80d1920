"""The folder that holds a data set: its lock, its files, and downloads into it."""

import hashlib
import os
import socket
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from http.client import HTTPException
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from filelock import FileLock

from fednnnn_plugin.errors import UserError, printable, reason

#: Below a data folder: decoded images, and the lock of all that is written into the data folder.
OWN_FOLDER = "fednnnn-decoded"

_LOCK_SECONDS = 3600.0
_STALL_SECONDS = 60.0


@contextmanager
def data_folder(folder: Path) -> Iterator[None]:
    """Say in one line that it is no folder, or what in it cannot be reached."""
    try:
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{printable(folder)}: not a folder")
        yield
    except OSError as error:
        raise UserError(
            f"{printable(error.filename or folder)}: cannot be used: {reason(error)}"
        ) from error


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a data folder; OSError where none can be had."""
    own = folder / OWN_FOLDER
    own.mkdir(parents=True, exist_ok=True)
    with FileLock(own / "lock", timeout=_LOCK_SECONDS):
        yield


def torchvision_datasets() -> Any:
    """Return ``torchvision.datasets``, imported where it is needed: it takes a second or two."""
    try:
        return import_module("torchvision.datasets")
    except (ImportError, RuntimeError) as error:  # one that is of another torch
        raise UserError(f"torchvision does not import: {reason(error)}") from error


@contextmanager
def downloading(folder: Path) -> Iterator[str]:
    """Let torchvision download into a place from which all goes to the data folder, once whole.

    Nothing that is there is replaced. torchvision prints, and would wait for ever on a silent
    connection.
    """
    before = socket.getdefaulttimeout()
    with locked(folder), TemporaryDirectory(prefix=".download-", dir=folder) as place:
        socket.setdefaulttimeout(_STALL_SECONDS)
        try:
            with redirect_stdout(sys.stderr):
                yield place
        except (OSError, RuntimeError, ValueError, HTTPException) as error:
            raise UserError(f"{printable(folder)}: download failed: {reason(error)}") from error
        finally:
            socket.setdefaulttimeout(before)
        for file in list(Path(place).rglob("*")):
            target = folder / file.relative_to(place)
            if file.is_file() and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                file.replace(target)


def check_file(path: Path, max_bytes: int, md5: str = "") -> None:
    """Refuse a file that a library would read without end, or that is not the official one."""
    if path.stat().st_size > max_bytes:
        raise UserError(f"{printable(path)}: more than the {max_bytes} bytes that it may have")
    if md5 and not torchvision_datasets().utils.check_integrity(path, md5):
        raise UserError(f"{printable(path)}: damaged, or not the official file: delete it")


def fingerprint(marks: str, files: Iterable[Path]) -> str:
    """Digest of some marks, and of the files' names, sizes and times of last change."""
    digest = hashlib.sha256(os.fsencode(marks))
    for file in files:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UserError(f"{printable(file)}: not a regular file")
        digest.update(os.fsencode(f"\n{file}\0{status.st_size}\0{status.st_mtime_ns}"))
    return digest.hexdigest()
