"""Jobs under ``mpirun``: real processes."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from .processes import Ended

BIN = Path(sys.executable).parent
_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}  # in a container


@contextmanager
def started(
    ranks: int, *command: str | Path, cwd: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Start a job; it is killed where the context ends before it."""
    process = subprocess.Popen(
        [BIN / "mpirun", "-np", str(ranks), "--oversubscribe", "--bind-to", "none", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=os.environ | _AS_ROOT,
    )
    try:
        yield process
    finally:
        process.kill()


def on_ranks(ranks: int, *command: str | Path, cwd: Path | None = None) -> Ended:
    """Run a job to its end."""
    with started(ranks, *command, cwd=cwd) as process:
        stdout, stderr = process.communicate(timeout=570)  # a watchdog
        return Ended(process.returncode, stdout, stderr)


def commands_on_ranks(
    ranks: int, commands: Mapping[str, Sequence[str]], folder: Path
) -> dict[str, Ended]:
    """Run ``fednnnn`` commands in a folder, a job each; return how each one ended.

    Processes that a job forks for its commands cannot share it: Open MPI's ranks find those of the
    command before, and wait for ever.
    """
    return {
        name: on_ranks(ranks, BIN / "fednnnn", *words, cwd=folder)
        for name, words in commands.items()
    }
