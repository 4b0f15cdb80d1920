"""A search from beginning to end, in one process or several."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from pathlib import Path

from fednnnn_plugin.engine.devices import keep_freed_memory
from fednnnn_plugin.engine.endings import ending, signals_raised
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.recipe import load_recipe
from fednnnn_plugin.tune.outcome import write_best, write_table
from fednnnn_plugin.tune.plan import Plan
from fednnnn_plugin.tune.search import Search, Trial
from fednnnn_plugin.tune.settings import Settings, check_values, make_plan, settings_of
from fednnnn_plugin.tune.study import StudyFolder
from fednnnn_plugin.tune.trial import Means

_TIME_TO_SAVE = 10.0


@dataclass(frozen=True)
class Found:
    """What a search chose, the recipe that holds it, and how many trials were stopped early."""

    values: dict[str, float]
    recipe: Path
    trials: int
    pruned: int


def open_study(
    folder: StudyFolder, path: Path, overrides: Sequence[str], given: Settings, *, resume: bool
) -> None:
    """Begin a study, or make sure that the one that is there is the one that was asked for.

    Args:
        folder: the study's.
        path: the recipe's file.
        overrides: of its keys.
        given: what was said of the search; what was not is the study's where it is resumed.
        resume: a study may be there; where there is none, one begins.

    Raises:
        UserError: a mistake in the recipe or the settings, or another study than asked for.
    """
    recipe = load_recipe(path, overrides)
    if not (resume and folder.plan.exists()):
        plan = make_plan(recipe, given)
        check_values(path, overrides, plan)
        folder.begin(recipe, plan)
        return
    folder.check(recipe)
    _, stored = folder.read()
    wanted = make_plan(recipe, settings_of(stored).updated(given))
    if wanted != stored:
        before, after = settings_of(stored), settings_of(wanted)
        raise UserError(
            "\n".join(
                f"--resume: {key}: {value}: the study in {folder.path} has {getattr(before, key)}"
                for key, value in after
                if value != getattr(before, key)
            )
        )


def search(folder: StudyFolder, means: Means, say: Callable[[str], None]) -> Found:
    """Carry a study to its end, with ``means.jobs`` processes side by side on this machine.

    Other processes, on other machines too, may work on the same study folder.

    Raises:
        UserError: a value that the recipe does not take, a damaged study.
        RunError: a step of which no trial finished.
    """
    from fednnnn_plugin.report.search import write_figures  # helpers need no matplotlib

    name, plan = folder.read()
    with _helpers(folder.path, means), _warnings_once(say):
        searched, found = _part(folder, plan, means, say)
    best = [searched.best(step) for step in plan.steps]
    trials = _tabulate(folder, plan, searched)
    with folder.locked():
        recipe = write_best(folder, name, plan, found, best)
        write_figures(folder.path)
    pruned = sum(trial.result.state == "pruned" for trial in trials)
    return Found(found, recipe, len(trials), pruned)


def _part(
    folder: StudyFolder, plan: Plan, means: Means, say: Callable[[str], None]
) -> tuple[Search, dict[str, float]]:
    """Do one process's part; the table is up to date after every trial."""

    def said(line: str) -> None:
        trials = _tabulate(folder, plan, own)
        say(f"[{len(trials)}/{sum(map(len, plan.steps))}] {line}")

    own = Search(folder, plan, means, said)
    return own, own.run()


def _tabulate(folder: StudyFolder, plan: Plan, searched: Search) -> list[Trial]:
    with folder.locked():
        trials = [trial for step in plan.steps for trial in searched.trials(step)]
        write_table(folder, plan, trials)
    return trials


@contextmanager
def _helpers(path: Path, means: Means) -> Iterator[None]:
    """Start the other processes; end them where this one is cut short."""
    context = get_context("spawn")
    helpers = [context.Process(target=_help, args=(path, means)) for _ in range(means.jobs - 1)]
    try:
        for helper in helpers:
            helper.start()
        yield
        for helper in helpers:
            helper.join()
    except BaseException:
        for helper in helpers:
            if helper.pid is not None:
                helper.terminate()
        for helper in helpers:
            if helper.pid is not None:
                helper.join(_TIME_TO_SAVE)
        raise


def _help(path: Path, means: Means) -> None:
    """Work on a study in a process of its own, no longer than the one that started it."""
    keep_freed_memory()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        with signals_raised(), _warnings_once(lambda line: None):
            folder = StudyFolder(path)
            _part(folder, folder.read()[1], means, say_at_once)
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
    handler = _Once(say)
    logger = logging.getLogger("fednnnn_plugin")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Once(logging.Handler):
    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say
        self._seen: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        line = f"{record.levelname.lower()}: {record.getMessage()}"
        if line not in self._seen:
            self._seen.add(line)
            self._say(line)
