"""The log of a run, in its folder."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from logging.handlers import MemoryHandler
from pathlib import Path

from fednnnn_plugin.errors import logged_message
from fednnnn_plugin.files import break_off


@contextmanager
def run_log() -> Iterator[Callable[[Path], None]]:
    """Hold back all log records from INFO on until what it yields names a file.

    Of a logger with a level of its own they are from that on. FedML's are among them. The process's
    own handlers get what they would get without it. A user's module may have configured logging
    anew before a file is named: the package's loggers and this are there again.
    """
    root = logging.getLogger()
    level, handlers = root.level, list[logging.Handler]()
    records = MemoryHandler(1)  # passes on each at once as soon as it has a target

    def shown(record: logging.LogRecord) -> bool:
        """Whether it would be there at the root's own level, if its logger has none."""
        logger = logging.getLogger(record.name)
        while logger.parent and not logger.level:
            logger = logger.parent
        return logger is not root or record.levelno >= level

    def begin() -> None:
        nonlocal level
        if records not in root.handlers or root.level > logging.INFO:
            level = root.level
            for handler in {*root.handlers} - {records, *handlers}:
                handlers.append(handler)
                handler.addFilter(shown)
            root.addHandler(records)
            # A root at NOTSET passes on everything; else the loggers' own levels decide.
            records.setLevel(logging.NOTSET if level else logging.INFO)
            root.setLevel(min(level, logging.INFO))
        for name, logger in [*root.manager.loggerDict.items()]:
            if name.startswith("fednnnn_plugin") and isinstance(logger, logging.Logger):
                logger.disabled = False

    def write_to(path: Path) -> None:
        break_off(path)
        file = _LogFile(path, encoding="utf-8", errors="backslashreplace")
        file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        records.setTarget(file)
        begin()
        records.flush()

    begin()
    try:
        yield write_to
    finally:
        root.setLevel(level)
        root.removeHandler(records)
        for handler in handlers:
            handler.removeFilter(shown)
        target = records.target
        records.close()  # passes on what an interrupt of its last record has kept back
        if target:
            with suppress(OSError):
                target.close()


class _LogFile(logging.FileHandler):
    def emit(self, record: logging.LogRecord) -> None:
        """Lose it on a full disk: logging's own report of that would hide the run's."""
        record = logging.makeLogRecord(vars(record) | {"msg": logged_message(record), "args": None})
        with suppress(OSError):
            assert self.stream is not None
            self.stream.write(self.format(record) + self.terminator)
            self.flush()
