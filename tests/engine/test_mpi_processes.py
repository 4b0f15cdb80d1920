"""Real processes under ``mpirun``: the same bytes on any number of ranks, and no hang."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from filelock import FileLock

from fednnnn_plugin.cli import main
from fednnnn_plugin.recipe import find_recipe

from ..support.processes import Ended
from ..support.ranks import BIN, on_ranks, runs_on_ranks, started
from .conftest import OWN

pytestmark = pytest.mark.slow

FEDNNNN, FEDAVG = "digits_noniid_ub_fednnnn", "digits_noniid_b_fedavg"
QUICK = {"comm_round": 2, "epochs": 1, "client_num_per_round": 4, "using_gpu": False}
MINE = """
from torch import nn

def net(num_classes):
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(144, num_classes))
"""
TORN = """
import os
import numpy as np

def data():
    assert os.environ["OMPI_COMM_WORLD_RANK"] != "{}", "no data here"
    images, labels = np.zeros((900, 1, 8, 8), np.uint8), np.arange(900) % 10
    return images, labels, images, labels
"""
MODULES = {
    "mine": MINE,
    "own": OWN,
    "rank_0": TORN.format(0),
    "rank_1": TORN.format(1),
    "server_lion": (Path(__file__).parents[1] / "support" / "server_lion.py").read_text(),
}
# What both ranks run: a recipe, and its settings.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "fednnnn": (FEDNNNN, {}),
    "fedexp": ("digits_noniid_b_fedexp", {}),
    "scaffold": (FEDNNNN, {"client_method": "scaffold", "comm_round": 4}),
    "model": (FEDNNNN, {"model": "mine:net"}),
    "sampler": (FEDNNNN, {"client_sampling": "own:by_turns"}),
    "data": (
        "digits_noniid_b_fednnnn",
        {"client_num_in_total": 4, "client_num_per_round": 2, "checkpoint_every": 1}
        | {"dataset": "own:hospitals", "data_args.shift": 0.5}
        | {"model": "own:Net", "model_args.width": 4},
    ),
    "options": (
        FEDAVG,
        {"client_num_in_total": 4, "loss": "mse", "client_optimizer": "adam"}
        | {"client_optimizer_args": {"betas": [0.8, 0.95]}, "learning_rate_decay": 0.5}
        | {"max_grad_norm": 0.1, "model": "own:net", "dataset": "own:numbers"}
        | {"metrics": ["r2", "own:worst"]},
    ),
    "rule": (FEDAVG, {"federated_optimizer": "server_lion:ServerLion", "server_lion_lr": 0.002}),
}


def run(output: str, *more: str, recipe: str = FEDNNNN, **settings: Any) -> list[str]:
    """The arguments of ``fednnnn``."""
    sets = [f"--set={key}={json.dumps(value)}" for key, value in (QUICK | settings).items()]
    return ["run", recipe, "--allow-code", "--output", output, *sets, *more]


def write_modules(folder: Path) -> None:
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(text)


def alone(*words: str) -> None:
    """Run in this process and folder."""
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """The folder in which two ranks ran all of :data:`CASES`, and how they ended."""
    folder = tmp_path_factory.mktemp("job")
    write_modules(folder)
    commands = {name: run(name, recipe=recipe, **more) for name, (recipe, more) in CASES.items()}
    return folder, runs_on_ranks(2, commands, folder)


@pytest.mark.parametrize("case", CASES)
def test_ranks_give_the_same_bytes(
    case: str, job: tuple[Path, Ended], own_code: Path, content: Any
) -> None:
    """What is a user's: each rank's clients train in processes of their own."""
    folder, ended = job
    assert ended.status == 0, ended.stderr
    rounds = [line.split()[1] for line in (folder / f"{case}.out").read_text().splitlines()]
    assert rounds[:2] == [f"{number}/{len(rounds) - 1}" for number in (1, 2)]
    write_modules(own_code)
    recipe, settings = CASES[case]
    alone(*run("alone", recipe=recipe, **settings))
    assert content(folder / case) == content(own_code / "alone")
    summary = json.loads((folder / case / "summary.json").read_text())
    assert (summary["backend"], summary["ranks"]) == ("MPI", 2)
    log = (folder / case / "fedml.log").read_text()
    assert ("(processes)" in log) == (case in {"model", "data", "options"})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        # What each rank finds, and what in its own start, after MPI's.
        (run("none", beta=-1), "train_args.beta: -1: "),
        (run("none", using_gpu=True, gpu_util_parse="host:1,1,1"), "it places 3 processes"),
        # What rank 0 alone sees: at the start, and before the first round.
        (run("a run"), "it already holds a run"),
        (run("a lock"), "another run is writing to it"),
        # What one rank alone sees.
        (run("none", dataset="rank_0:data"), "no data here"),
        (run("none", dataset="rank_1:data"), "no data here"),
    ],
)
def test_mistake_is_said_once_for_all_ranks(words: list[str], said: str, own_code: Path) -> None:
    write_modules(own_code)
    (own_code / "a run").mkdir()
    (own_code / "a run" / "summary.json").write_text("{}")
    (own_code / "a lock").mkdir()
    with FileLock(own_code / "a lock" / ".lock"):
        ended = on_ranks(2, BIN / "fednnnn", *words)
    assert (ended.status, ended.stderr.count(said)) == (2, 1), ended
    assert "MPI_ABORT" not in ended.stderr
    assert ("rank 1 on " in ended.stderr) == ("rank_1" in str(words))
    assert not Path("none").exists()


def test_code_edited_since_is_refused_once(job: tuple[Path, Ended]) -> None:
    """Rank 0 alone compares the digests."""
    folder, _ = job
    (folder / "mine.py").write_text(MINE.replace("4", "5"))
    ended = on_ranks(2, BIN / "fednnnn", *run("model", "--resume", model="mine:net"), cwd=folder)
    assert (ended.status, ended.stderr.count("model (code)")) == (2, 1), ended
    assert "MPI_ABORT" not in ended.stderr


def test_mistake_of_one_rank_names_it(tmp_path: Path) -> None:
    for rank in ("0", "1"):  # as on two machines, of which one lacks the recipe
        (tmp_path / rank).mkdir()
    shutil.copy(find_recipe(FEDNNNN), tmp_path / "0" / "own.yaml")
    command = f"cd {tmp_path}/$OMPI_COMM_WORLD_RANK && exec {BIN}/fednnnn run own.yaml"
    apart = f"export OMPI_COMM_WORLD_LOCAL_RANK=0; {command}"
    ended = on_ranks(2, "bash", "-c", apart)
    assert ended.status == 2
    assert re.search(r"^rank 1 on .+: .*own\.yaml", ended.stderr, re.MULTILINE)


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


def test_rank_that_raises_ends_the_job(tmp_path: Path) -> None:
    ended = on_ranks(2, sys.executable, "-c", BROKEN, *run("run"), cwd=tmp_path)
    assert ended.status == 1
    assert "ArithmeticError: rank 1 lost its mind" in ended.stderr


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


def wait_for_round(process: "subprocess.Popen[str]", number: int) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(f"round {number}/"):
            return


def test_killed_rank_costs_no_bits(own_code: Path, content: Any) -> None:
    """Every rank forks its clients: none of them may keep the killed one's place."""
    write_modules(own_code)
    own: dict[str, Any] = {"model": "mine:net", "checkpoint_every": 2}
    with started(3, BIN / "fednnnn", *run("parts", comm_round=1_000, **own)) as process:
        wait_for_round(process, 3)
        os.kill(dict(rank_processes(process.pid))[2], signal.SIGKILL)
        process.communicate(timeout=60)
    assert process.returncode != 0
    done = max(int(path.name.split("-")[1]) for path in Path("parts", "checkpoint").iterdir())
    own["comm_round"] = done + 2
    more = ("--resume", "--backend", "MPI")
    ended = on_ranks(2, BIN / "fednnnn", *run("parts", *more, **own))
    assert ended.status == 0, ended.stderr
    *shown, closing = ended.stdout.splitlines()
    assert [line.split()[1] for line in shown] == [f"{done + k}/{done + 2}" for k in (1, 2)]
    assert closing.startswith("parts: accuracy")
    alone(*run("whole", **own))
    assert content(Path("parts")) == content(Path("whole"))
