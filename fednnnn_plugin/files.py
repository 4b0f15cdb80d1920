"""Files that are written whole or not at all, and read without surprises."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fednnnn_plugin.errors import UserError, shown

LONGEST_LINE = 1 << 24  # bytes of a round's record
MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")  # bytes of the machine's
TEMPORARY = ".fednnnn-tmp"


def user_path(path: str | os.PathLike[str]) -> Path:
    """Expand ``~``, which is the working directory for a user without a home, as in a container.

    As in a shell, the ``~name`` of a user who is not known is a name like others.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        first, *rest = Path(path).parts
        return Path.cwd().joinpath(*rest) if first == "~" else Path(path)


def checked_path(what: object, given: object) -> Path:
    """The :func:`user_path` of an argument that may be anything."""
    if not isinstance(given, str | os.PathLike):
        raise UserError(what, shown(given), "must be a path")
    return user_path(given)


def is_writable(path: Path) -> bool:
    """Tell whether a file or a folder could be made in the nearest folder above that is there."""
    nearest = next(above for above in path.absolute().parents if os.path.lexists(above))
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)


@contextmanager
def errors_named(path: Path) -> Iterator[None]:
    """Name the file in errors of writing to it; the kernel reports a full disk without a name."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def read_regular(path: Path, max_bytes: int) -> bytes:
    """Read a file, or raise ``OSError`` of what would block, never end, or fill the memory."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > max_bytes:
        raise OSError(f"not a regular file of at most {max_bytes} bytes")
    return path.read_bytes()


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file, or raise ``OSError`` with its name and leave there what it held before."""
    temporary = path.with_name(f".{path.name}{TEMPORARY}")
    with errors_named(path):
        temporary.unlink(missing_ok=True)  # it may be a link
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync(path.parent)


def sync(path: Path) -> None:
    """Have the disk hold what a file has, or which files a folder has."""
    with errors_named(path):
        opened = os.open(path, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def break_off(path: Path) -> None:
    """Give a file that is to grow a content of its own: a copy of its folder may be hard links."""
    if path.is_file() and path.stat().st_nlink > 1:
        write_atomically(path, path.read_bytes())
