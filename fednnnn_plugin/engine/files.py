"""Writing a file so that it is either whole or not there, and opening what is a file."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

_SUFFIX = ".fednnnn-tmp"


@contextmanager
def errors_named(path: Path) -> Iterator[None]:
    """Name the file in errors of writing to it; the kernel reports a full disk without a name."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_atomically(path: Path, content: bytes) -> None:
    """Write through a temporary file in the same folder, fsync and rename.

    Raises:
        OSError: naming ``path``; what it held before is as it was.
    """
    temporary = path.with_name(f".{path.name}{_SUFFIX}")
    with errors_named(path):
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def remove_left_over(folder: Path) -> None:
    """Remove the temporary files that a process left which died while writing."""
    for left_over in folder.glob(f".*{_SUFFIX}"):
        left_over.unlink()


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
