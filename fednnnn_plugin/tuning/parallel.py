"""A search carried to its end, in one process or several."""

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fednnnn_plugin.processes import endings
from fednnnn_plugin.processes.interpreter import python_command
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
    with _helpers(folder, say, jobs), endings.resumable():
        study = part.run()
    with folder.locked():
        folder.write_best(study)
        write_figures(study)
    return study


@contextmanager
def _helpers(folder: StudyFolder, say: Callable[[str], None], jobs: int) -> Iterator[None]:
    """Have other processes work on a study; wait for them, or end them where this one is cut short.

    They are in sessions of their own, as a terminal's Ctrl-C is for this process.
    """
    command = python_command(
        f"from {__name__} import help_search; help_search(*sys.argv[1:])",
        os.fspath(folder.path),
        str(jobs),
        *["allow-code"] * folder.allow_code,
    )
    with ExitStack() as stack:
        helpers: list[subprocess.Popen[bytes]] = []
        try:
            for _ in range(jobs - 1):
                helper = subprocess.Popen(
                    command,
                    cwd=folder.here,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    start_new_session=True,
                )
                helpers.append(stack.enter_context(helper))
                reader = threading.Thread(target=_pass_on, args=(helper, say), daemon=True)
                reader.start()
                stack.callback(reader.join)  # before its helper's output is closed
            yield
        except BaseException:
            for helper in helpers:
                helper.terminate()
            raise


def _pass_on(helper: subprocess.Popen[bytes], say: Callable[[str], None]) -> None:
    assert helper.stdout is not None
    for line in helper.stdout:
        say(line.decode(errors="backslashreplace").rstrip("\n"))


def help_search(path: str, jobs: str, *allow_code: str) -> None:
    """Work on a study in a process that ends with the one that started it, killed or not."""
    keep_freed_memory()
    # The one that started it shows the warnings.
    logging.getLogger("fednnnn_plugin").addHandler(logging.NullHandler())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    folder = StudyFolder(Path(path), allow_code=bool(allow_code))
    try:
        with endings.signals_raised():
            Search(folder, endings.say, int(jobs)).run()
    except BaseException as error:
        message, status = endings.ending(error)
        if status not in (130, 143):
            sys.stderr.write(message + "\n")
        sys.exit(status)


def _end_with_parent() -> None:
    """Wait for the end of standard input, which the parent holds open while it lives."""
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)
