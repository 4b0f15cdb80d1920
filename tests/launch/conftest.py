"""The launch scripts as a user calls them."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..support.processes import WATCHDOG

_LAUNCH = Path(__file__).parents[2] / "launch"

SHORT = ("--set=train_args.epochs=1", "--set=device_args.using_gpu=false")
SHORT += ("--set=train_args.checkpoint_every=999",)

Start = Callable[..., "subprocess.Popen[str]"]
Run = Callable[..., str]
Command = Callable[[str, str], None]


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Put a shell script in the place of a command."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def placed(name: str, text: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)

    return placed


@pytest.fixture
def start(tmp_path: Path, command: object) -> Iterator[Start]:
    """Start a script of ``launch/`` in an empty folder.

    It finds the commands of this virtual environment, and no word of an outer job.
    """
    running = []
    inherited = {n: v for n, v in os.environ.items() if not n.startswith(("SLURM", "OMPI", "PMI"))}
    found = (tmp_path / "bin", Path(sys.executable).parent, os.environ["PATH"])
    inherited |= {"PATH": os.pathsep.join(map(str, found)), "OMPI_ALLOW_RUN_AS_ROOT": "1"}
    inherited["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"

    def started(name: str, *arguments: str, **more: str) -> "subprocess.Popen[str]":
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        words, environment = [_LAUNCH / name, *arguments], inherited | more
        running.append(subprocess.Popen(words, cwd=tmp_path, env=environment, **pipes))
        return running[-1]

    yield started
    for process in running:
        process.kill()


@pytest.fixture
def script(start: Start) -> Run:
    """Run a script to its end; return what it printed."""

    def ran(name: str, *arguments: str, status: int = 0, **more: str) -> str:
        process = start(name, *arguments, **more)
        output, errors = process.communicate(timeout=WATCHDOG)
        assert process.returncode == status, errors
        return output + errors

    return ran


def wait_for(path: Path, process: "subprocess.Popen[str]") -> None:
    """Wait until a script has written something there."""
    while not (path.exists() and path.read_text()):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
