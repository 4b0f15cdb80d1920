"""How a process ended, and when it is taken to hang."""

from dataclasses import dataclass

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
