"""A search carried to its end, in one process or several."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from multiprocessing import get_context, parent_process
from pathlib import Path

from fednnnn_plugin.endings import ending, signals_raised
from fednnnn_plugin.engine.heap import keep_freed_memory
from fednnnn_plugin.report.study import Study, read_plan
from fednnnn_plugin.tune.folder import StudyFolder
from fednnnn_plugin.tune.search import Search

_TIME_TO_SAVE = 10.0


def search(
    folder: StudyFolder, say: Callable[[str], None], *, jobs: int, allow_code: bool
) -> tuple[Study, dict[str, float]]:
    """Carry a study to its end, with ``jobs`` processes side by side on this machine.

    Other processes, on other machines too, may work on the same study folder.

    Returns:
        What was found, and the values chosen, which ``best.yaml`` holds.

    Raises:
        UserError: a value that the recipe does not take, a damaged study.
        RunError: a step of which no trial finished.
    """
    from fednnnn_plugin.report.search import write_figures  # helpers need no matplotlib

    with _helpers(folder.path, jobs, allow_code), _warnings_once(say):
        plan = read_plan(folder.path)
        study, chosen = Search(folder, plan, say, jobs=jobs, allow_code=allow_code).run()
    with folder.locked():
        folder.write_best(study, chosen)
        write_figures(folder.path)
    return study, chosen


@contextmanager
def _helpers(path: Path, jobs: int, allow_code: bool) -> Iterator[None]:
    """Start the other processes; end them where this one is cut short."""
    context = get_context("spawn")
    helpers = [
        context.Process(target=_help, args=(path, jobs, allow_code)) for _ in range(jobs - 1)
    ]
    try:
        for helper in helpers:
            helper.start()
        yield
        for helper in helpers:
            helper.join()
    except BaseException:
        started = [helper for helper in helpers if helper.pid is not None]
        for helper in started:
            helper.terminate()
        for helper in started:
            helper.join(_TIME_TO_SAVE)
        raise


def _help(path: Path, jobs: int, allow_code: bool) -> None:
    """Work on a study in a process of its own, no longer than the one that started it."""
    keep_freed_memory()
    logging.getLogger("fednnnn_plugin").addHandler(logging.NullHandler())  # that one shows them
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        with signals_raised():
            plan = read_plan(path)
            Search(StudyFolder(path), plan, say_at_once, jobs=jobs, allow_code=allow_code).run()
    except BaseException as error:
        message, status = ending(error)
        if status not in (130, 143):
            sys.stderr.write(message + "\n")
        sys.exit(status)


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def say_at_once(line: str) -> None:
    """Print a line, whole even where several processes print."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@contextmanager
def _warnings_once(say: Callable[[str], None]) -> Iterator[None]:
    """Show each of the package's warnings once, not once a trial."""
    handler = _Once(logging.WARNING)
    handler.say = lru_cache(None)(say)
    logger = logging.getLogger("fednnnn_plugin")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Once(logging.Handler):
    say: Callable[[str], None]

    def emit(self, record: logging.LogRecord) -> None:
        self.say(f"{record.levelname.lower()}: {record.getMessage()}")
