"""Downloads through torchvision, which checks the MD5 sums that it knows."""

import contextlib
import http.client
import shutil
import socket
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

from fednnnn_plugin.data.cache import replace_durably
from fednnnn_plugin.data.sources import reason
from fednnnn_plugin.errors import UserError

_STALL_SECONDS = 60.0


def download(urls: Sequence[str], md5: str, target: Path) -> None:
    """Fetch a file from the first of its mirrors that delivers it whole.

    It gets its name only once its sum is right, so an interrupted download leaves nothing that a
    later run could take for data. One process at a time: the caller holds the data set's lock.

    Raises:
        UserError: no mirror delivered it, or the folder cannot be written to.
    """
    partial = target.parent / f".{target.name}.download"
    torchvision = import_module("torchvision.datasets.utils")
    failures = []
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for url in urls:
            shutil.rmtree(partial, ignore_errors=True)
            try:
                # torchvision prints, and waits for ever on a silent connection.
                with contextlib.redirect_stdout(sys.stderr), _stalls_noticed():
                    torchvision.download_url(url, str(partial), filename=target.name, md5=md5)
            except (OSError, RuntimeError, ValueError, http.client.HTTPException) as error:
                failures.append(f"{url}: {reason(error)}")
            else:
                replace_durably(partial / target.name, target)
                return
    except OSError as error:
        failures.append(reason(error))
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    raise UserError(f"{target}: download failed: {'; '.join(failures)}")


@contextlib.contextmanager
def _stalls_noticed() -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_STALL_SECONDS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
