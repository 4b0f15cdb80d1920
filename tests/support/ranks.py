"""Jobs under ``mpirun``: real processes."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from .processes import Ended

BIN = Path(sys.executable).parent
_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}  # in a container
# Most of a command's time is imports: each rank has them once, and forks for each command.
_COMMANDS = """
import json, os, sys
from pathlib import Path
from fednnnn_plugin.cli import main
import fednnnn_plugin.engine.start, sklearn.datasets, torch._dynamo

for name, words in json.loads(sys.argv[1]).items():
    place = f"{name}.{os.environ['OMPI_COMM_WORLD_RANK']}"
    child = os.fork()
    if child == 0:
        for descriptor, stream in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{place}.{stream}", os.O_WRONLY | os.O_CREAT), descriptor)
        main(words, "fednnnn")
    Path(f"{place}.status").write_text(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
"""


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
    """Run ``fednnnn`` commands in a folder, one after another; return how each one ended.

    The statuses of all ranks must be the same; what they wrote is joined.
    """
    done = on_ranks(ranks, sys.executable, "-c", _COMMANDS, json.dumps(commands), cwd=folder)
    assert done.status == 0, done.stderr

    def written(name: str, part: str) -> list[str]:
        return [(folder / f"{name}.{rank}.{part}").read_text() for rank in range(ranks)]

    found = {}
    for name in commands:
        [status] = set(written(name, "status"))
        found[name] = Ended(int(status), *("".join(written(name, of)) for of in ("out", "err")))
    return found
