"""Real processes under ``mpirun``: the same bytes on any number of ranks, and no hang."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fednnnn_plugin.cli import main

RECIPE = "digits_noniid_ub_fednnnn"
QUICK = {"comm_round": 4, "epochs": 1, "checkpoint_every": 2, "device_args.using_gpu": False}
_BIN = Path(sys.executable).parent
_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",  # as in a container
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


def mpirun(ranks: int, *command: str | Path) -> list[str | Path]:
    return [
        _BIN / "mpirun", "-np", str(ranks), "--oversubscribe", "--bind-to", "none", *command
    ]  # fmt: skip


def run(folder: Path, *more: str, **settings: Any) -> list[str]:
    """The arguments of ``fednnnn``."""
    keys = {k if "." in k else f"train_args.{k}": v for k, v in (QUICK | settings).items()}
    sets = [part for k, v in keys.items() for part in ("--set", f"{k}={json.dumps(v)}")]
    return ["run", RECIPE, "--output", str(folder), *sets, *more]


def start(command: list[str | Path]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | _ENVIRONMENT,
    )


def alone(folder: Path, *more: str, **settings: Any) -> bytes:
    """Run standalone, in this process; return the model's file."""
    result = CliRunner().invoke(main, run(folder, *more, **settings), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return (folder / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The model of a standalone run."""
    return alone(tmp_path_factory.mktemp("standalone") / "run")


def rounds_of(text: str) -> list[int]:
    lines = [line for line in text.splitlines() if line.startswith("round ")]
    return [int(line.split()[1].partition("/")[0]) for line in lines]


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_the_model_has_the_same_bytes_on_any_number_of_ranks(
    standalone: bytes, tmp_path: Path, ranks: int
) -> None:
    process = start(mpirun(ranks, _BIN / "fednnnn", *run(tmp_path / "run", "--backend", "MPI")))
    stdout, stderr = process.communicate(timeout=240)
    assert process.returncode == 0, stderr
    assert rounds_of(stdout) == [1, 2, 3, 4]
    assert stdout.count(f"{tmp_path / 'run'}: accuracy") == 1
    assert stderr == ""
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == standalone
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["backend"], summary["ranks"]) == ("MPI", ranks)


def rank_processes(launcher: int) -> Iterator[tuple[int, int]]:
    """Yield (rank, process id) of a launcher's children."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # it ended meanwhile
            continue
        for variable in variables:
            name, _, value = variable.partition(b"=")
            if parent == launcher and name == b"OMPI_COMM_WORLD_RANK":
                yield int(value), int(folder.name)


@pytest.mark.slow
def test_a_killed_rank_ends_the_job_and_any_number_of_ranks_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(mpirun(3, _BIN / "fednnnn", *run(folder, comm_round=1_000)))
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if rounds_of(line) == [3]:
                break
        os.kill(dict(rank_processes(process.pid))[2], signal.SIGKILL)
        began = time.monotonic()
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode != 0
    assert time.monotonic() - began < 10
    assert len(list((folder / "checkpoint").iterdir())) in (1, 2)

    done = max(int(path.name.split("-")[1]) for path in (folder / "checkpoint").iterdir())
    settings = run(folder, "--resume", comm_round=done + 1)
    process = start(mpirun(2, _BIN / "fednnnn", *settings))
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    assert rounds_of(stdout) == [done + 1]
    more = alone(folder, "--resume", comm_round=done + 2)
    assert more == alone(tmp_path / "whole", comm_round=done + 2)


BROKEN = """
import sys
from fednnnn_plugin.cli import main
from fednnnn_plugin.engine.ranks import MpiRanks

serve = MpiRanks.serve

def broken(self, state):
    if self.rank == 1:
        raise ArithmeticError("rank 1 lost its mind")
    serve(self, state)

MpiRanks.serve = broken
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_a_rank_that_raises_takes_the_job_down_with_its_error_on_the_screen(
    tmp_path: Path,
) -> None:
    process = start(mpirun(2, sys.executable, "-c", BROKEN, *run(tmp_path / "run")))
    try:
        _, stderr = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 1
    assert "ArithmeticError: rank 1 lost its mind" in stderr


@pytest.mark.slow
def test_a_mistake_is_said_once_for_all_ranks(tmp_path: Path) -> None:
    process = start(mpirun(2, _BIN / "fednnnn", *run(tmp_path / "run", beta=-1)))
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 2
    assert stderr.count("train_args.beta: -1: must be a finite number greater than 0") == 1
    assert not (tmp_path / "run").exists()

    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "summary.json").write_text("{}")
    process = start(mpirun(2, _BIN / "fednnnn", *run(tmp_path / "run")))
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 2
    assert stderr.count("it already holds a run; go on with --resume") == 1


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_job_saves_the_last_round(tmp_path: Path, sent: signal.Signals) -> None:
    folder = tmp_path / "run"
    process = start(mpirun(2, _BIN / "fednnnn", *run(folder, comm_round=999, checkpoint_every=999)))
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if rounds_of(line) == [3]:
                break
        process.send_signal(sent)
        began = time.monotonic()
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert time.monotonic() - began < 10
    assert process.returncode != 0  # mpirun's own
    assert "Traceback" not in stderr
    [checkpoint] = (folder / "checkpoint").iterdir()
    done = int(checkpoint.name.split("-")[1])
    settings = {"comm_round": done + 1, "checkpoint_every": 999}
    assert alone(folder, "--resume", **settings) == alone(tmp_path / "whole", **settings)
