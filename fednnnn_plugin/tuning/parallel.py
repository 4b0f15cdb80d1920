"""A search carried to its end, in one process or several."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing import get_context, parent_process

from fednnnn_plugin.followers.progress import warnings_shown
from fednnnn_plugin.processes.endings import ending, resumable, signals_raised
from fednnnn_plugin.processes.numerics import keep_freed_memory
from fednnnn_plugin.reporting.study import Study
from fednnnn_plugin.tuning.search import Search
from fednnnn_plugin.tuning.study_folder import StudyFolder


def search(folder: StudyFolder, say: Callable[[str], None], jobs: int) -> Study:
    """Carry a study to its end, in ``jobs`` processes on this machine; others may be at it too.

    ``say`` takes a line for each trial that ends.
    """
    from fednnnn_plugin.reporting.search_figures import write_figures  # helpers need no matplotlib

    part = Search(folder, say, jobs)
    start = get_context("spawn").Process
    # Daemons, which end with this process where it is cut short.
    helpers = [start(target=_help, args=(folder, say, jobs), daemon=True) for _ in range(jobs - 1)]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # theirs from now on: this one ends them
    try:
        for helper in helpers:
            helper.start()
    finally:
        signal.signal(signal.SIGINT, before)
    with warnings_shown(), resumable():
        study = part.run()
    for helper in helpers:
        helper.join()
    with folder.locked():
        folder.write_best(study)
        write_figures(study)
    return study


def _help(folder: StudyFolder, say: Callable[[str], None], jobs: int) -> None:
    """Work on a study in a process that ends with the one that started it, killed or not."""
    keep_freed_memory()
    # The one that started it shows the warnings.
    logging.getLogger("fednnnn_plugin").addHandler(logging.NullHandler())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        with signals_raised():
            Search(folder, say, jobs).run()
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
