"""Real processes of ``fednnnn`` to disturb, and folders to compare."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ZYGOTE = Path(__file__).with_name("zygote.py")
RECIPE = "digits_noniid_b_fednnnn"
#: Rounds of some 15 ms: 3 of 20 clients, one epoch, a checkpoint in each.
QUICK = {
    "train_args.client_num_per_round": 3,
    "train_args.epochs": 1,
    "train_args.comm_round": 3,
    "train_args.checkpoint_every": 1,
    "device_args.using_gpu": False,
}


@dataclass(frozen=True)
class Ended:
    """How a command ended: negative for a signal, as in ``subprocess``."""

    status: int
    stdout: str
    stderr: str
    seconds: float

    def check_one_line(self, status: int) -> str:
        """Return the one line that a mistake is said in."""
        assert self.status == status, self.stderr
        assert self.stderr.endswith("\n")
        [line] = self.stderr.splitlines()
        return line


class Started:
    """A command that runs."""

    def __init__(self, commands: "Commands", pid: int, screen: Path) -> None:
        self.pid = pid
        self._commands, self._screen = commands, screen
        self._began = time.monotonic()

    def wait(self) -> Ended:
        """Wait for its end."""
        status = self._commands.ask({"wait": self.pid})
        out, err = (self._screen.with_suffix(f".{n}").read_text() for n in ("out", "err"))
        return Ended(status, out, err, time.monotonic() - self._began)


class Commands:
    """Starts ``fednnnn`` commands, each in a process of its own."""

    def __init__(self, screens: Path, environment: dict[str, str]) -> None:
        self._screens, self._count = screens, 0
        self._zygote = subprocess.Popen(
            [sys.executable, ZYGOTE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def ask(self, request: dict[str, Any]) -> int:
        """Ask for one thing."""
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        self._zygote.stdin.write(json.dumps(request) + "\n")
        self._zygote.stdin.flush()
        return int(self._zygote.stdout.readline())

    def start(
        self,
        *arguments: str | Path,
        folder: Path,
        memory: int = 0,
        seconds: int = 60,
        **fault: Any,
    ) -> Started:
        """Start a command in a folder; see `zygote` for the limits and faults."""
        self._count += 1
        screen = self._screens / str(self._count)
        request = {
            "arguments": list(map(str, arguments)),
            "folder": str(folder),
            "screen": str(screen),
            "memory": memory,
            "seconds": seconds,
            "fault": fault,
        }
        return Started(self, self.ask(request), screen)

    def run(self, *arguments: str | Path, **options: Any) -> Ended:
        """Start a command and wait for its end."""
        return self.start(*arguments, **options).wait()

    def close(self) -> None:
        """End the process that starts the others."""
        self._zygote.communicate(timeout=30)


@pytest.fixture(scope="session")
def commands(
    tmp_path_factory: pytest.TempPathFactory, unmeasured: dict[str, str]
) -> Iterator[Commands]:
    commands = Commands(tmp_path_factory.mktemp("screens"), unmeasured)
    yield commands
    commands.close()


@pytest.fixture(scope="session")
def quick() -> Callable[..., list[str]]:
    """The arguments of a quick run; keywords are its ``train_args``."""

    def arguments(output: str | Path, *more: str, recipe: str = RECIPE, **keys: Any) -> list[str]:
        settings = QUICK | {k if "." in k else f"train_args.{k}": v for k, v in keys.items()}
        sets = [part for k, v in settings.items() for part in ("--set", f"{k}={json.dumps(v)}")]
        return ["run", recipe, "--output", str(output), *sets, *more]

    return arguments
