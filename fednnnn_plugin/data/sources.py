"""The folder that holds a data set: one line for what is wrong with it, one writer at a time."""

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from io import BufferedReader
from pathlib import Path
from typing import Any

from filelock import FileLock

from fednnnn_plugin.errors import UserError, printable, reason

#: Below a data folder: decoded images, and the lock of all that is written into the data folder.
OWN_FOLDER = "fednnnn-decoded"

_LOCK_SECONDS = 3600.0


@contextmanager
def data_folder(folder: Path) -> Iterator[None]:
    """Say in one line what keeps a data folder from being used.

    Raises:
        UserError: it is no folder, or something in it cannot be reached.
    """
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
    """Hold the lock of a data folder: one process downloads or decodes, the others wait.

    Raises:
        OSError: the folder cannot be written to, or another process holds it for too long.
    """
    own = folder / OWN_FOLDER
    own.mkdir(parents=True, exist_ok=True)
    lock = FileLock(own / "lock", timeout=_LOCK_SECONDS)
    try:
        lock.acquire()
    except NotImplementedError as error:  # a file system without locks
        raise OSError(f"{own}: {error}") from error
    try:
        yield
    finally:
        lock.release()


def torchvision_datasets() -> Any:
    """Return ``torchvision.datasets``, imported where it is needed: it takes a second or two.

    Raises:
        UserError: it does not import, as one that is of another torch.
    """
    try:
        return import_module("torchvision.datasets")
    except (ImportError, RuntimeError) as error:
        raise UserError(f"torchvision does not import: {reason(error)}") from error


def open_regular(path: Path, max_bytes: int) -> BufferedReader:
    """Open a regular file (a pipe or a device would block or never end) of at most so many bytes.

    Raises:
        OSError: it cannot be opened, or is none.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    status = os.fstat(descriptor)
    problem = None
    if not stat.S_ISREG(status.st_mode):
        problem = "not a regular file"
    elif status.st_size > max_bytes:
        problem = f"{status.st_size} bytes, more than the {max_bytes} that it may have"
    if problem:
        os.close(descriptor)
        raise OSError(problem)
    return os.fdopen(descriptor, "rb")


def fingerprint(marks: str, files: Iterable[Path]) -> str:
    """Digest of some marks, and of the files' names, sizes and times of last change.

    Raises:
        UserError: one is not a regular file.
        OSError: one is gone or cannot be looked at.
    """
    digest = hashlib.sha256(os.fsencode(marks))
    for file in files:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UserError(f"{printable(file)}: not a regular file")
        digest.update(os.fsencode(f"\n{file}\0{status.st_size}\0{status.st_mtime_ns}"))
    return digest.hexdigest()
