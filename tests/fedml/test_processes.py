"""Real processes: ``fedml run``, a FedML script alone and under MPI, and how they end."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from fednnnn_plugin.recipe import find_recipe

pytestmark = pytest.mark.slow

ENTRY_SCRIPT = """
import fedml
from fedml import FedMLRunner

if __name__ == "__main__":
    args = fedml.init()
    device = fedml.device.get_device(args)
    dataset, output_dim = fedml.data.load(args)
    model = fedml.model.create(args, output_dim)
    fedml_runner = FedMLRunner(args, device, dataset, model)
    fedml_runner.run()
"""

# Ends the process at the first attempt to reach another one, by whatever library.
NO_CONNECTIONS = """
import os, sys

def guard(event, args):
    if event in {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"}:
        sys.stderr.write(f"attempted {event} {args[1:]}")
        sys.stderr.flush()
        os._exit(99)

sys.addaudithook(guard)
from fedml.cli.cli import cli
cli(sys.argv[1:], prog_name="fedml")
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Callable[..., Path]:
    """Write a shortened copy of the quick start's recipe; keywords are its ``train_args``."""

    def write(name: str = "short.yaml", sections: dict | None = None, **train_args: object) -> Path:
        content = yaml.safe_load(find_recipe("digits_noniid_b_fednnnn").read_text())
        short = {"comm_round": 2, "client_num_in_total": 10, "client_num_per_round": 3}
        content["train_args"] |= short | {"epochs": 1} | train_args
        content["device_args"]["using_gpu"] = False
        for section, values in (sections or {}).items():
            content.setdefault(section, {}).update(values)
        path = tmp_path / name
        path.write_text(yaml.safe_dump(content))
        return path

    return write


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "main.py"
    path.write_text(ENTRY_SCRIPT)
    return path


def lines(folder: Path) -> list[dict]:
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in found]


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_fedml_run_runs_a_recipe_without_a_connection(run_python, recipe, tmp_path) -> None:
    done = run_python("-c", NO_CONNECTIONS, "run", recipe(), "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert [line["round"] for line in lines(tmp_path / "out")] == [1, 2]
    assert [text.split()[:2] for text in done.stdout.splitlines()[:2]] == [
        ["round", "1/2"],
        ["round", "2/2"],
    ]
    assert "FedML" not in done.stdout + done.stderr
    program = NO_CONNECTIONS.replace(
        "from fedml", "import socket\nsocket.create_connection(('localhost', 1))\n#"
    )
    assert run_python("-c", program).returncode == 99  # the guard sees one


def test_a_script_gives_the_bits_of_fedml_run_and_twice_is_told_what_to_do(
    scripts, run_python, recipe, script, tmp_path
) -> None:
    path, folder = recipe(), tmp_path / "runs" / "short-seed0"
    scripted = scripts.run(script, "--cf", path, folder=tmp_path)
    assert scripted.returncode == 0, scripted.stderr
    command = Path(sys.executable).with_name("fedml")
    direct = run_python(command, "run", path, "--output", tmp_path / "direct")
    assert direct.returncode == 0, direct.stderr
    assert weights(folder) == weights(tmp_path / "direct")
    assert lines(folder) == lines(tmp_path / "direct")
    assert sum(line.startswith("round ") for line in scripted.stdout.splitlines()) == 2
    assert "round" not in scripted.stderr[scripted.stderr.rfind("[FedML") :]

    again = scripts.run(script, "--cf", path, folder=tmp_path)
    assert again.returncode == 1
    for key in ("tracking_args.overwrite: true", "tracking_args.resume: true"):
        assert key in again.stderr
    replaced = recipe(sections={"tracking_args": {"overwrite": True}}, comm_round=1)
    assert scripts.run(script, "--cf", replaced, folder=tmp_path).returncode == 0
    assert len(lines(folder)) == 1
    resumed = recipe(sections={"tracking_args": {"resume": True}})
    assert scripts.run(script, "--cf", resumed, folder=tmp_path).returncode == 0
    assert lines(folder) == lines(tmp_path / "direct")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 1)], ids=str)
def test_a_signal_leaves_a_checkpoint_to_go_on_from(
    number, status, scripts, recipe, script, tmp_path
) -> None:
    long = {"comm_round": 1_000, "checkpoint_every": 1_000}
    process = scripts.start(script, "--cf", recipe(**long), folder=tmp_path)
    folder = tmp_path / "runs" / "short-seed0"
    deadline = time.monotonic() + 120
    while not ((folder / "metrics.jsonl").exists() and len(lines(folder)) >= 2):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send(number)
    ended = process.wait()
    assert ended.returncode == status, ended.stderr
    done = len(lines(folder))
    assert max((folder / "checkpoint").iterdir()).name.startswith(f"round-{done:06d}-")
    if number == signal.SIGTERM:
        assert ended.stderr.splitlines()[-1].startswith("terminated; ")
        assert "Traceback" not in ended.stderr


def test_a_mistake_in_a_script_names_file_key_and_value(scripts, recipe, script, tmp_path) -> None:
    path = recipe("bad.yaml", beta=-1)
    done = scripts.run(script, "--cf", path, folder=tmp_path)
    assert f"{path}: train_args.beta: -1: must be a finite number greater than 0" in done.stderr


def test_tracking_without_a_key_is_a_line_before_anything_is_written(
    scripts, recipe, script, tmp_path
) -> None:
    path = recipe(sections={"tracking_args": {"enable_wandb": True, "wandb_project": "p"}})
    before = set(tmp_path.iterdir())
    done = scripts.run(script, "--cf", path, folder=tmp_path, WANDB_API_KEY="", WANDB_MODE="online")
    assert done.returncode == 1
    assert "tracking_args.enable_wandb: true: " in done.stderr.splitlines()[-1]
    assert not {entry.name for entry in set(tmp_path.iterdir()) - before} & {"runs", "wandb"}


@pytest.fixture
def run_ranks(run_python) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a script on several ranks of this machine."""
    mpirun = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun")
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

    def run(ranks: int, *arguments: str | Path, **environment: str):
        launcher = [mpirun, "--oversubscribe", "-np", str(ranks), sys.executable]
        start = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)"
        return run_python("-c", start, *launcher, *arguments, **as_root | environment)

    return run


def test_the_script_gives_the_same_bits_on_two_ranks(
    scripts, run_ranks, recipe, script, tmp_path
) -> None:
    one, two = recipe("one.yaml"), recipe("two.yaml", {"comm_args": {"backend": "MPI"}})
    assert scripts.run(script, "--cf", one, folder=tmp_path).returncode == 0
    done = run_ranks(2, script, "--cf", two, HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert weights(tmp_path / "work/runs/two-seed0") == weights(tmp_path / "runs/one-seed0")
    assert done.stdout.count("round 2/2") == 1


def test_a_rank_that_has_no_data_ends_the_job(run_ranks, recipe, script, tmp_path) -> None:
    elsewhere = (
        "    if args.rank == 1:\n"
        "        args.dataset, args.data_cache_dir, args.download = 'mnist', '/nowhere', False\n"
    )
    script.write_text(ENTRY_SCRIPT.replace("    dataset, ", elsewhere + "    dataset, "))
    path = recipe(sections={"comm_args": {"backend": "MPI"}})
    done = run_ranks(2, script, "--cf", path, HOME=str(tmp_path))
    assert done.returncode == 2
    assert "/nowhere" in done.stderr


CROSS_SILO = {
    "common_args": {"training_type": "cross_silo", "scenario": "horizontal"},
    "comm_args": {"backend": "MPI"},
    "data_args": {"partition_method": "iid"},
    "device_args": {"worker_num": 2},
}


@pytest.mark.parametrize(
    ("breaks", "status", "said"),
    [
        ("args.beta = -1\n    ", 2, "train_args.beta: -1: must be"),
        (
            "import fednnnn_plugin\n    fednnnn_plugin.FedNNNNAggregator.aggregate = None\n    ",
            1,
            "'NoneType' object is not callable",
        ),
    ],
    ids=["a setting", "the server"],
)
def test_a_cross_silo_federation_over_mpi_ends_together(
    breaks, status, said, run_ranks, recipe, script, tmp_path
) -> None:
    """Where one process raises, before FedML's threads begin or after."""
    script.write_text(ENTRY_SCRIPT.replace("fedml_runner = ", breaks + "fedml_runner = "))
    path = recipe(sections=CROSS_SILO, client_num_in_total=2, client_num_per_round=2)
    done = run_ranks(3, script, "--cf", path, HOME=str(tmp_path))
    assert done.returncode == status
    assert said in done.stderr
