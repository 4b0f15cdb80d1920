"""The folder that holds a data set: its lock, and what is put into it."""

import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
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
            raise UserError(printable(folder), "not a folder")
        yield
    except OSError as error:
        raise UserError(
            printable(error.filename or folder), f"cannot be used: {reason(error)}"
        ) from error


@contextmanager
def users_folder(folder: Path | None) -> Iterator[tuple[Path, str]]:
    """Give the folder that ``data_dir`` names, which must be there, and what to call it."""
    assert folder is not None, "a checked recipe names the folder"
    where = f"data_args.data_dir: {printable(folder)}"
    if not folder.is_dir():
        raise UserError(where, "no such folder")
    with data_folder(folder):
        yield folder, where


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a data folder; OSError where none can be had."""
    own = folder / OWN_FOLDER
    own.mkdir(parents=True, exist_ok=True)
    with FileLock(own / "lock", timeout=_LOCK_SECONDS):
        yield


@contextmanager
def arriving(folder: Path) -> Iterator[str]:
    """Hold the lock, and give a place whose files go to the data folder once they are whole.

    Nothing that is there is replaced.
    """
    with locked(folder), TemporaryDirectory(prefix=".arriving-", dir=folder) as place:
        yield place
        for file in list(Path(place).rglob("*")):
            target = folder / file.relative_to(place)
            if file.is_file() and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                file.replace(target)


def download_missing(
    name: str,
    folder: Path,
    is_there: Callable[[Path], object],
    calls: Iterable[Mapping[str, object]],
) -> None:
    """Download torchvision's data set of this name, unless it is in the folder.

    Each of the ``calls`` of its class, with these arguments, downloads a part.
    """
    if is_there(folder):
        return
    before = socket.getdefaulttimeout()
    with arriving(folder) as place:
        if is_there(folder):  # by now, as the lock is ours
            return
        socket.setdefaulttimeout(_STALL_SECONDS)  # a silent connection would be waited for for ever
        try:
            with redirect_stdout(sys.stderr):  # torchvision prints
                for arguments in calls:
                    getattr(torchvision_datasets(), name)(place, download=True, **arguments)
        except (OSError, RuntimeError, ValueError, HTTPException) as error:
            raise UserError(printable(folder), f"download failed: {reason(error)}") from error
        finally:
            socket.setdefaulttimeout(before)


def torchvision_datasets() -> Any:
    """Return ``torchvision.datasets``, imported where it is needed: it takes a second or two."""
    try:
        return import_module("torchvision.datasets")
    except (ImportError, RuntimeError) as error:  # one that is of another torch
        raise UserError("torchvision does not import", reason(error)) from error


def check_file(path: Path, max_bytes: int, md5: str = "") -> None:
    """Refuse a file that a library would read without end, or that is not the official one."""
    if path.stat().st_size > max_bytes:
        raise UserError(printable(path), f"more than the {max_bytes} bytes that it may have")
    if md5 and not torchvision_datasets().utils.check_integrity(path, md5):
        raise UserError(printable(path), "damaged, or not the official file: delete it")
