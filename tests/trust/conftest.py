"""Real processes of ``fednnnn`` to disturb."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

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

    def check_one_line(self, status: int) -> str:
        """Return the one line that a mistake is said in."""
        assert self.status == status, self.stderr
        assert self.stderr.endswith("\n")
        [line] = self.stderr.splitlines()
        return line


class Commands:
    """Starts ``fednnnn`` commands, each in a process of its own; see `zygote`."""

    def __init__(self, screens: Path, environment: dict[str, str]) -> None:
        self._screens, self._running = screens, dict[int, Path]()
        self._zygote = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("zygote.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment | {"PYTHONDONTWRITEBYTECODE": "1"},  # which would count as a change
        )

    def _ask(self, request: dict[str, Any]) -> int:
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        self._zygote.stdin.write(json.dumps(request) + "\n")
        self._zygote.stdin.flush()
        return int(self._zygote.stdout.readline())

    def start(self, *arguments: str | Path, folder: Path, **limits: Any) -> int:
        """Start a command in a folder, with the limits and faults of `zygote`; its process id."""
        screen = self._screens / os.urandom(8).hex()
        request = {"folder": str(folder), "screen": str(screen), "memory": 0, "seconds": 60}
        request |= {"arguments": list(map(str, arguments)), "watch": "", "strike": []}
        pid = self._ask(request | limits)
        self._running[pid] = screen
        return pid

    def wait(self, pid: int) -> Ended:
        """Wait for the end of a command."""
        status, screen = self._ask({"wait": pid}), self._running.pop(pid)
        return Ended(status, *(screen.with_suffix(f".{n}").read_text() for n in ("out", "err")))

    def run(self, *arguments: str | Path, **options: Any) -> Ended:
        """Start a command and wait for its end."""
        return self.wait(self.start(*arguments, **options))

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

    def arguments(output: object, *more: str, recipe: str = RECIPE, **keys: Any) -> list[str]:
        settings = QUICK | {k if "." in k else f"train_args.{k}": v for k, v in keys.items()}
        sets = [part for k, v in settings.items() for part in ("--set", f"{k}={json.dumps(v)}")]
        return ["run", recipe, *(["--output", str(output)] if output else []), *sets, *more]

    return arguments
