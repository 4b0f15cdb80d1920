"""The files that loaders read: opened only if regular, fingerprinted by name, size and time."""

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from fednnnn_plugin.errors import UserError

_LONGEST = 200  # characters


@contextmanager
def data_folder(folder: Path) -> Iterator[None]:
    """Say in one line what keeps a data folder from being used.

    Raises:
        UserError: it is no folder, or something in it cannot be reached.
    """
    try:
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder}: not a folder")
        yield
    except OSError as error:
        raise UserError(
            f"{printable(error.filename or folder)}: cannot be used: {reason(error)}"
        ) from error


def open_regular(path: Path, max_bytes: int | None = None) -> BufferedReader:
    """Open a regular file (a pipe or a device would block or never end) of at most so many bytes.

    Raises:
        OSError: it cannot be opened, or is none.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    status = os.fstat(descriptor)
    problem = None
    if not stat.S_ISREG(status.st_mode):
        problem = "not a regular file"
    elif max_bytes is not None and status.st_size > max_bytes:
        problem = f"{status.st_size} bytes, more than the {max_bytes} that it may have"
    if problem:
        os.close(descriptor)
        raise OSError(problem)
    return os.fdopen(descriptor, "rb")


def fingerprint(folder: Path, files: Iterable[Path]) -> str:
    """Digest of the files' names below ``folder``, sizes and times of last change.

    Raises:
        OSError: a file is gone or cannot be looked at.
    """
    digest = hashlib.sha256()
    prefix = len(str(folder))  # names below it: the folder may move
    for file in files:
        status = file.stat()
        line = f"{str(file)[prefix:]}\0{status.st_size}\0{status.st_mtime_ns}\n"
        digest.update(os.fsencode(line))
    return digest.hexdigest()


def printable(path: object) -> str:
    """A path on one line: unprintable characters escaped, the middle of a long one left out."""
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(path))
    return text if len(text) <= 2 * _LONGEST else f"{text[:_LONGEST]}…{text[-_LONGEST:]}"


def reason(error: Exception) -> str:
    """Return what an exception says, in one line and without a path said elsewhere."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__
