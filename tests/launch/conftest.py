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
def environment() -> dict[str, str]:
    """The commands of this virtual environment, and no word of an outer job."""
    inherited = {n: v for n, v in os.environ.items() if not n.startswith(("SLURM", "OMPI", "PMI"))}
    found = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return inherited | {
        "PATH": found,
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
