"""The folder that holds a data set: one line for what is wrong with it, one writer at a time."""

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from filelock import FileLock

from fednnnn_plugin.errors import UserError, printable, reason

#: Below a data folder: decoded images, and the lock of all that is written into the data folder.
OWN_FOLDER = "fednnnn-decoded"

_LOCK_SECONDS = 3600.0


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
    try:
        lock = FileLock(own / "lock", timeout=_LOCK_SECONDS).acquire()
    except NotImplementedError as error:  # a file system without locks
        raise OSError(f"{own}: {error}") from error
    with lock:
        yield


def torchvision_datasets() -> Any:
    """Return ``torchvision.datasets``, imported where it is needed: it takes a second or two."""
    try:
        return import_module("torchvision.datasets")
    except (ImportError, RuntimeError) as error:  # one that is of another torch
        raise UserError(f"torchvision does not import: {reason(error)}") from error


def fingerprint(marks: str, files: Iterable[Path]) -> str:
    """Digest of some marks, and of the files' names, sizes and times of last change."""
    digest = hashlib.sha256(os.fsencode(marks))
    for file in files:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UserError(f"{printable(file)}: not a regular file")
        digest.update(os.fsencode(f"\n{file}\0{status.st_size}\0{status.st_mtime_ns}"))
    return digest.hexdigest()
