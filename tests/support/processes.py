"""How a process ended, when it is taken to hang, and its end where a test failed before."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

#: Seconds: far more than a test takes beside ten times as many processes as there are cores.
WATCHDOG = 800


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
