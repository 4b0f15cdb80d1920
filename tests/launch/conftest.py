"""The launch scripts as a user calls them, on two short rounds of digits."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

_LAUNCH = Path(__file__).parents[2] / "launch"

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def command(tmp_path: Path) -> Callable[[str, str], None]:
    """Put a shell script in the place of a command."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def placed(name: str, text: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)

    # `fedml run` without FedML's import, which takes longer than all that it does here.
    placed("fedml", 'exec fednnnn "$@"')
    return placed


@pytest.fixture
def environment(tmp_path: Path, command: object) -> dict[str, str]:
    """The commands of this virtual environment, and no word of an outer job."""
    inherited = {n: v for n, v in os.environ.items() if not n.startswith(("SLURM", "OMPI", "PMI"))}
    found = (tmp_path / "bin", Path(sys.executable).parent, os.environ["PATH"])
    return inherited | {
        "PATH": os.pathsep.join(map(str, found)),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }


@pytest.fixture
def start(tmp_path: Path, environment: dict[str, str]) -> Start:
    """Start a script of ``launch/`` in an empty folder."""

    def started(name: str, *arguments: str, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [_LAUNCH / name, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env=environment | more,
        )

    return started


@pytest.fixture
def script(start: Start) -> Callable[..., str]:
    """Run a script to its end; return what it printed."""

    def ran(name: str, *arguments: str, status: int = 0, **more: str) -> str:
        process = start(name, *arguments, **more)
        try:
            output, errors = process.communicate(timeout=300)
        finally:
            process.kill()
        assert process.returncode == status, errors
        return output + errors

    return ran
