"""The launch scripts as a user calls them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..support.processes import WATCHDOG, kill_with_children, wait_until

_LAUNCH = Path(__file__).parents[2] / "launch"

SHORT = ("--set=train_args.epochs=1", "--set=device_args.using_gpu=false")
SHORT += ("--set=train_args.checkpoint_every=999",)


class Launcher:
    """Starts scripts of ``launch/`` in an empty folder.

    They find the commands of this virtual environment, and no word of an outer job.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._bin = folder / "bin"
        self._bin.mkdir()
        self.running: list[subprocess.Popen[str]] = []

    def command(self, name: str, text: str) -> None:
        """Put a shell script in the place of a command."""
        (self._bin / name).write_text(f"#!/bin/sh\n{text}\n")
        (self._bin / name).chmod(0o755)

    def start(self, name: str, *arguments: str, **more: str) -> "subprocess.Popen[str]":
        """Start a script, with more variables of the environment."""
        given = {n: v for n, v in os.environ.items() if not n.startswith(("SLURM", "OMPI", "PMI"))}
        found = (self._bin, Path(sys.executable).parent, os.environ["PATH"])
        given |= {"PATH": os.pathsep.join(map(str, found)), "OMPI_ALLOW_RUN_AS_ROOT": "1"}
        given |= {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} | more
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        words = [_LAUNCH / name, *arguments]
        self.running.append(subprocess.Popen(words, cwd=self._folder, env=given, **pipes))
        return self.running[-1]

    def run(self, name: str, *arguments: str, status: int = 0, **more: str) -> str:
        """Run a script to its end; return what it printed."""
        process = self.start(name, *arguments, **more)
        output, errors = process.communicate(timeout=WATCHDOG)
        assert process.returncode == status, errors
        return output + errors

    def wait_for(self, name: str, process: "subprocess.Popen[str]") -> str:
        """Wait until a script has written something to a file of the folder; return it."""
        path = self._folder / name
        return wait_until(
            lambda: path.exists() and path.read_text(),
            lambda: process.poll() is not None and process.communicate(),
        )


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    made = Launcher(tmp_path)
    yield made
    for process in made.running:
        if process.poll() is None:
            kill_with_children(process.pid)
