"""The official files of a data set: downloaded by torchvision, and held against its MD5 sums."""

import contextlib
import http.client
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from fednnnn_plugin.data.sources import locked, torchvision_datasets
from fednnnn_plugin.errors import UserError, printable, reason

_STALL_SECONDS = 60.0


@contextlib.contextmanager
def downloading(folder: Path) -> Iterator[str]:
    """Let torchvision download into a place from which all goes to the data folder, once whole.

    One process at a time. Nothing that is there is replaced. Torchvision prints, which goes to the
    standard error, and would wait for ever on a silent connection.
    """
    before = socket.getdefaulttimeout()
    with locked(folder), TemporaryDirectory(prefix=".download-", dir=folder) as place:
        socket.setdefaulttimeout(_STALL_SECONDS)
        try:
            with contextlib.redirect_stdout(sys.stderr):
                yield place
        except (OSError, RuntimeError, ValueError, http.client.HTTPException) as error:
            raise UserError(f"{printable(folder)}: download failed: {reason(error)}") from error
        finally:
            socket.setdefaulttimeout(before)
        for file in Path(place).rglob("*"):
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
