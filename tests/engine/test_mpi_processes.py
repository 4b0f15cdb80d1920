"""Real processes under ``mpirun``: the same bytes on any number of ranks, and no hang."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

import fednnnn_plugin as fp
from fednnnn_plugin.recipe import find_recipe

pytestmark = pytest.mark.slow

FEDNNNN, FEDEXP = "digits_noniid_ub_fednnnn", "digits_noniid_b_fedexp"
QUICK = {"comm_round": 3, "epochs": 1, "checkpoint_every": 2, "device_args.using_gpu": False}
_BIN = Path(sys.executable).parent
_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}  # in a container

# Both rules in one job: most of its time is imports.
BOTH = f"""
import sys
import fednnnn_plugin as fp
for recipe in {FEDNNNN, FEDEXP}:
    fp.run(recipe, overrides=sys.argv[2:], output=sys.argv[1] + recipe)
"""
BROKEN = """
import sys
from fednnnn_plugin.cli import main
from fednnnn_plugin.engine.ranks import MpiRanks

def broken(self, state):
    if self.rank == 1:
        raise ArithmeticError("rank 1 lost its mind")
    serve(self, state)

serve, MpiRanks.serve = MpiRanks.serve, broken
main(sys.argv[1:])
"""


def keys(settings: dict[str, Any]) -> dict[str, Any]:
    return {k if "." in k else f"train_args.{k}": v for k, v in (QUICK | settings).items()}


def options(**settings: Any) -> list[str]:
    return [f"{key}={json.dumps(value)}" for key, value in keys(settings).items()]


def run(folder: Path, *more: str, **settings: Any) -> list[str]:
    """The arguments of ``fednnnn``."""
    sets = [f"--set={option}" for option in options(**settings)]
    return ["run", FEDNNNN, "--output", str(folder), *sets, *more]


@contextmanager
def started(ranks: int, *command: str | Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [_BIN / "mpirun", "-np", str(ranks), "--oversubscribe", "--bind-to", "none", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | _AS_ROOT,
    )
    try:
        yield process
    finally:
        process.kill()


def ended(ranks: int, *command: str | Path) -> tuple[int, str, str]:
    """Return how a job ended: its status, and what it wrote."""
    with started(ranks, *command) as process:
        stdout, stderr = process.communicate(timeout=240)
        return process.returncode, stdout, stderr


def model_of(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def alone(folder: Path, recipe: str = FEDNNNN, resume: bool = False, **settings: Any) -> bytes:
    """Run standalone, in this process; return the model's file."""
    fp.run(recipe, overrides=keys(settings), output=folder, resume=resume)
    return model_of(folder)


def test_the_model_has_the_same_bytes_on_four_ranks(tmp_path: Path) -> None:
    job = (sys.executable, "-c", BOTH, f"{tmp_path}/", *options())
    status, stdout, stderr = ended(4, *job)
    assert (status, stderr) == (0, "")
    assert [line.split()[1] for line in stdout.splitlines()] == ["1/3", "2/3", "3/3"] * 2
    for recipe in (FEDNNNN, FEDEXP):
        assert model_of(tmp_path / recipe) == alone(tmp_path / f"{recipe} alone", recipe)
        summary = json.loads((tmp_path / recipe / "summary.json").read_text())
        assert (summary["backend"], summary["ranks"]) == ("MPI", 4)


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


def wait_for_round(process: subprocess.Popen[str], number: int) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(f"round {number}/"):
            return


def test_a_killed_rank_ends_the_job_and_any_number_of_ranks_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with started(3, _BIN / "fednnnn", *run(folder, comm_round=1_000)) as process:
        wait_for_round(process, 3)
        os.kill(dict(rank_processes(process.pid))[2], signal.SIGKILL)
        process.communicate(timeout=60)
    assert process.returncode != 0
    done = max(int(path.name.split("-")[1]) for path in (folder / "checkpoint").iterdir())
    job = run(folder, "--resume", "--backend", "MPI", comm_round=done + 1)
    status, stdout, stderr = ended(2, _BIN / "fednnnn", *job)
    assert status == 0, stderr
    shown, closing = stdout.splitlines()
    assert shown.startswith(f"round {done + 1}/")
    assert closing.startswith(f"{folder}: accuracy")
    more = {"comm_round": done + 2}
    assert alone(folder, resume=True, **more) == alone(tmp_path / "whole", **more)


def test_a_rank_that_raises_takes_the_job_down_with_its_error_on_the_screen(
    tmp_path: Path,
) -> None:
    status, _, stderr = ended(2, sys.executable, "-c", BROKEN, *run(tmp_path / "run"))
    assert status == 1
    assert "ArithmeticError: rank 1 lost its mind" in stderr


def test_a_mistake_is_said_once_for_all_ranks(tmp_path: Path) -> None:
    status, _, stderr = ended(2, _BIN / "fednnnn", *run(tmp_path / "run", beta=-1))
    assert (status, stderr.count("train_args.beta: -1: ")) == (2, 1)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("holds", "more", "said"),
    [
        ("a run", [], "it already holds a run"),
        ("a lock", [], "another run is writing to it"),
        ("a fingerprint", ["--resume"], "model (code)"),
    ],
)
def test_what_rank_0_alone_sees_ends_all(
    holds: str, more: list[str], said: str, own_code: Path
) -> None:
    """At the start, before the first round, and with the model."""
    Path("mine.py").write_text(OWN)
    folder, settings = Path("run"), keys({"comm_round": 4, "model_args.model": "mine:net"})
    if holds == "a fingerprint":
        once = settings | {"train_args.comm_round": 1}
        fp.run(FEDNNNN, overrides=once, output=folder, allow_code=True)
        Path("mine.py").write_text(OWN.replace("4", "5"))
    folder.mkdir(exist_ok=True)
    if holds == "a run":
        (folder / "summary.json").write_text("{}")
    with FileLock(folder / ".lock") if holds == "a lock" else nullcontext():
        for command in ("run", "check"):
            job = [command, *run(folder, "--allow-code", *more, **settings)[1:]]
            status, _, stderr = ended(2, _BIN / "fednnnn", *job)
            assert (status, stderr.count(said)) == (2, 1), stderr
            assert "MPI_ABORT" not in stderr


def test_a_mistake_that_all_ranks_know_aborts_nothing(tmp_path: Path) -> None:
    """One that each finds in its own start, after MPI's."""
    placed = {"device_args.using_gpu": True, "device_args.gpu_util_parse": "host:1,1,1"}
    status, _, stderr = ended(2, _BIN / "fednnnn", *run(tmp_path / "run", **placed))
    assert (status, stderr.count("gpu_util_parse: it places 3 processes")) == (2, 1)
    assert "MPI_ABORT" not in stderr


def test_a_mistake_that_one_rank_alone_has_names_it(tmp_path: Path) -> None:
    for rank in ("0", "1"):  # as on two machines, of which one lacks the recipe
        (tmp_path / rank).mkdir()
    shutil.copy(find_recipe(FEDNNNN), tmp_path / "0" / "own.yaml")
    command = f"cd {tmp_path}/$OMPI_COMM_WORLD_RANK && exec {_BIN}/fednnnn run own.yaml"
    apart = f"export OMPI_COMM_WORLD_LOCAL_RANK=0; {command}"
    status, _, stderr = ended(2, "bash", "-c", apart)
    assert status == 2
    assert re.search(r"^rank 1 on .+: .*own\.yaml", stderr, re.MULTILINE)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_mistake_in_one_ranks_data_ends_all(rank: int, own_code: Path) -> None:
    """As on two machines, one of which has no data: the line names the rank."""
    Path("mine.py").write_text(
        f"""
import os
import numpy as np

def data():
    assert os.environ["OMPI_COMM_WORLD_RANK"] != "{rank}", "no data here"
    images, labels = np.zeros((900, 1, 8, 8), np.uint8), np.arange(900) % 10
    return images, labels, images, labels
"""
    )
    job = run(Path("run"), "--allow-code", **keys({"data_args.dataset": "mine:data"}))
    status, _, stderr = ended(2, _BIN / "fednnnn", *job)
    assert (status, stderr.count("no data here")) == (2, 1), stderr
    assert ("rank 1 on " in stderr) == (rank == 1)
    assert "MPI_ABORT" not in stderr


OWN = """
from torch import nn

def net(num_classes):
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(144, num_classes))
"""


def test_a_users_model_has_the_same_bytes_on_any_number_of_ranks(
    own_code: Path, content: Any
) -> None:
    """With dropout; each rank's clients train in processes."""
    Path("mine.py").write_text(OWN)
    settings = keys({"model_args.model": "mine:net"})
    summary = fp.run(FEDNNNN, overrides=settings, output="alone", allow_code=True).summary
    assert summary
    for ranks in (1, 2, 3):
        job = run(Path(str(ranks)), "--allow-code", "--backend", "MPI", **settings)
        status, _, stderr = ended(ranks, _BIN / "fednnnn", *job)
        assert (status, stderr) == (0, "")
        assert "(processes)" in Path(str(ranks), "fedml.log").read_text()
        assert content(Path(str(ranks))) == content(Path("alone"))


def test_a_users_run_that_was_killed_goes_on_to_the_same_bytes(
    own_code: Path, content: Any
) -> None:
    """Every rank forks its clients: none of them may keep a killed rank's place."""
    Path("mine.py").write_text(OWN)
    own = {"model_args.model": "mine:net", "checkpoint_every": 1}
    job = (_BIN / "fednnnn", *run(Path("parts"), "--allow-code", comm_round=1_000, **own))
    with started(2, *job) as process:
        wait_for_round(process, 2)
        os.kill(dict(rank_processes(process.pid))[0], signal.SIGKILL)
        process.communicate(timeout=60)
    assert process.returncode != 0
    saved = [path.name for path in Path("parts", "checkpoint").iterdir()]
    own["comm_round"] = max(int(name.split("-")[1]) for name in saved) + 2
    job = (_BIN / "fednnnn", *run(Path("parts"), "--allow-code", "--resume", **own))
    assert ended(2, *job)[0] == 0
    assert "(processes)" in Path("parts", "fedml.log").read_text()
    fp.run(FEDNNNN, overrides=keys(own), output="whole", allow_code=True)
    assert content(Path("parts")) == content(Path("whole"))
