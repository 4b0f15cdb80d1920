"""Waiting for a process, how it ended, and its end where a test failed before."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

#: Seconds: far more than a test takes beside ten times as many processes as there are cores.
WATCHDOG = 800
T = TypeVar("T")


def wait_until(what: Callable[[], T], ended: Callable[[], object] = lambda: None) -> T:
    """Return what another process brings about, once that is true.

    ``ended`` is true if the process can no longer do it, and says how it ended.
    """
    deadline = time.monotonic() + WATCHDOG
    while not (found := what()):
        assert not (how := ended()), how
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return found


@dataclass(frozen=True)
class Ended:
    """How a command ended: negative for a signal, as in ``subprocess``."""

    status: int | None
    stdout: str
    stderr: str

    def check_one_line(self, status: int) -> str:
        """Return the one line of the error."""
        assert self.status == status, self.stderr
        assert self.stderr.endswith("\n")
        [line] = self.stderr.splitlines()
        return line


def kill_with_children(process: int) -> None:
    """Kill a process and all that it started, stopped ones and those of other sessions, too."""
    for member in list(_with_children(process)):
        with suppress(ProcessLookupError):
            os.kill(member, signal.SIGKILL)


def _with_children(process: int) -> Iterator[int]:
    yield process
    with suppress(OSError):  # it ended meanwhile
        for thread in Path(f"/proc/{process}/task").iterdir():
            for child in (thread / "children").read_text().split():
                yield from _with_children(int(child))
