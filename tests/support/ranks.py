"""Jobs under ``mpirun``: real processes."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from .processes import WATCHDOG, Ended, kill_with_children

BIN = Path(sys.executable).parent
_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}  # in a container


@contextmanager
def started(
    ranks: int, *command: str | Path, cwd: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Start a job; it is killed where the context ends before it."""
    words = [BIN / "mpirun", "-np", str(ranks), "--oversubscribe", "--bind-to", "none", *command]
    pipe, environment = subprocess.PIPE, os.environ | _AS_ROOT
    process = subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, cwd=cwd, env=environment)
    try:
        yield process
    finally:
        if process.poll() is None:
            kill_with_children(process.pid)  # a stopped rank would outlive mpirun


def on_ranks(ranks: int, *command: str | Path, cwd: Path | None = None) -> Ended:
    """Run a job to its end."""
    with started(ranks, *command, cwd=cwd) as process:
        stdout, stderr = process.communicate(timeout=WATCHDOG)
        return Ended(process.returncode, stdout, stderr)


_ONE_AFTER_ANOTHER = """
import json, os, sys
from contextlib import redirect_stdout
from pathlib import Path
from fednnnn_plugin.cli import main

sys.path.insert(0, "")
rank_0 = os.environ["OMPI_COMM_WORLD_RANK"] == "0"
for name, words in json.loads(Path("commands.json").read_text()).items():
    with open(f"{name}.out" if rank_0 else os.devnull, "w") as out, redirect_stdout(out):
        main(words, standalone_mode=False)
"""


def runs_on_ranks(ranks: int, commands: Mapping[str, Sequence[str]], folder: Path) -> Ended:
    """Run ``fednnnn`` commands in a folder, one after another in one job.

    What rank 0 of each prints is in the file ``<name>.out``.
    """
    (folder / "commands.json").write_text(json.dumps(commands))
    return on_ranks(ranks, sys.executable, "-c", _ONE_AFTER_ANOTHER, cwd=folder)
