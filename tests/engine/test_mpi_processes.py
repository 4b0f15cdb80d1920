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
from ..support.ranks import BIN, commands_on_ranks, on_ranks, started
from . import test_client_options, test_objects, test_sampling

pytestmark = pytest.mark.slow

FEDNNNN, FEDAVG = "digits_noniid_ub_fednnnn", "digits_noniid_b_fedavg"
QUICK = {"comm_round": 2, "epochs": 1, "client_num_per_round": 4, "using_gpu": False}
OWN = """
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
    "mine": OWN,
    "sampler": test_sampling.MODULE,
    "hospital": test_objects.MODULE,
    "own_options": test_client_options.MODULE,
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
    "sampler": (FEDNNNN, {"client_sampling": "sampler:by_turns"}),
    "data": (
        "digits_noniid_b_fednnnn",
        test_objects.QUICK
        | {"dataset": "hospital:hospitals", "data_args.shift": 0.5}
        | {"model": "hospital:Net", "model_args.width": 4},
    ),
    "options": (
        FEDAVG,
        test_client_options.QUICK
        | test_client_options.CASES["adam_mse"][2]
        | {"model": "own_options:net", "dataset": "own_options:numbers"}
        | {"metrics": ["r2", "own_options:worst"]},
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
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("job")


@pytest.fixture(scope="module")
def job(folder: Path) -> dict[str, Ended]:
    """How the commands of two ranks ended: each of :data:`CASES`, and mistakes."""
    write_modules(folder)
    for name in ("a run", "a lock"):
        (folder / name).mkdir()
    (folder / "a run" / "summary.json").write_text("{}")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", [*sys.path])
        Path("edited.py").write_text(OWN)
        alone(*run("a fingerprint", model="edited:net", comm_round=1))
        sys.modules.pop("edited")
        Path("edited.py").write_text(OWN.replace("4", "5"))
    commands = {name: run(name, recipe=recipe, **more) for name, (recipe, more) in CASES.items()}
    commands |= {
        "key": run("none", beta=-1),
        "placed": run("none", using_gpu=True, gpu_util_parse="host:1,1,1"),
        "a run": run("a run"),
        "a lock": run("a lock"),
        "a check": ["check", *run("a lock")[1:]],
        "a fingerprint": run("a fingerprint", "--resume", model="edited:net"),
        "rank 0": run("none", dataset="rank_0:data"),
        "rank 1": run("none", dataset="rank_1:data"),
    }
    with FileLock(folder / "a lock" / ".lock"):
        return commands_on_ranks(2, commands, folder)


@pytest.mark.parametrize("case", CASES)
def test_ranks_give_the_same_bytes(
    case: str, job: dict[str, Ended], folder: Path, own_code: Path, content: Any
) -> None:
    """What is a user's: each rank's clients train in processes of their own."""
    assert job[case].status == 0, job[case].stderr
    rounds = [line.split()[1] for line in job[case].stdout.splitlines()]
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
    ("mistake", "said"),
    [
        ("key", "train_args.beta: -1: "),
        # What each rank finds in its own start, after MPI's.
        ("placed", "gpu_util_parse: it places 3 processes"),
        # What rank 0 alone sees: at the start, before the first round, and with the model.
        ("a run", "it already holds a run"),
        ("a lock", "another run is writing to it"),
        ("a check", "another run is writing to it"),
        ("a fingerprint", "model (code)"),
        # What one rank alone sees.
        ("rank 0", "no data here"),
        ("rank 1", "no data here"),
    ],
)
def test_mistake_is_said_once_for_all_ranks(
    mistake: str, said: str, job: dict[str, Ended], folder: Path
) -> None:
    assert (job[mistake].status, job[mistake].stderr.count(said)) == (2, 1), job[mistake]
    assert "MPI_ABORT" not in job[mistake].stderr
    assert ("rank 1 on " in job[mistake].stderr) == (mistake == "rank 1")
    assert not (folder / "none").exists()


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
