"""The run's log file."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class _LogFile(logging.FileHandler):
    """Loses records on a full disk: logging's own report of that would hide the run's."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            assert self.stream is not None
            self.stream.write(self.format(record) + self.terminator)
            self.flush()

    def close(self) -> None:
        with suppress(OSError):
            super().close()


@contextmanager
def logged_to(path: Path) -> Iterator[None]:
    """Send every log record of the process, FedML's included, to the run's log file."""
    root = logging.getLogger()
    handler = _LogFile(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    level = root.level
    root.addHandler(handler)
    root.setLevel(min(level, logging.INFO) or logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        handler.close()
