"""Real processes: ``fedml run``, a FedML script alone and under MPI, and how they end."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fednnnn_plugin.recipe import find_recipe

from ..support.ranks import on_ranks
from .conftest import wait_until

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).with_name("examples")
SCRIPT = EXAMPLES / "step_by_step.py"
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
# After a simulation a cross-silo federation whose server breaks.
BREAKING = """
    sys.argv[2] = "silo.yaml"
    fednnnn_plugin.FedNNNNAggregator.aggregate = None
    args = fedml.init()
    dataset, output_dim = fedml.data.load(args)
    FedMLRunner(args, device, dataset, fedml.model.create(args, output_dim)).run()
"""
SILO = {
    "common_args": {"training_type": "cross_silo", "scenario": "horizontal"},
    "data_args": {"partition_method": "iid"},
    "train_args": {"client_num_in_total": 1, "client_num_per_round": 1},
    "device_args": {"worker_num": 1},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the processes run; FedML leaves files in the user's."""
    for name, value in (("HOME", tmp_path), ("FEDNNNN_PLUGIN_DISABLE", 0), ("OMP_NUM_THREADS", 1)):
        monkeypatch.setenv(name, str(value))
    return tmp_path


def write_recipe(path: Path, *sections: dict, **train_args: object) -> Path:
    """Write a shortened copy of the quick start's recipe."""
    content = yaml.safe_load(find_recipe("digits_noniid_b_fednnnn").read_text())
    short = {"comm_round": 2, "client_num_in_total": 10, "client_num_per_round": 3, "epochs": 1}
    for changed in (
        {"train_args": short | train_args, "device_args": {"using_gpu": False}},
        *sections,
    ):
        for section, values in changed.items():
            content.setdefault(section, {}).update(values)
    path.write_text(yaml.safe_dump(content))
    return path


def lines(folder: Path) -> list[dict]:
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line | {"seconds": None} for line in found]


def assert_same(folder: Path, other: Path) -> None:
    assert lines(folder) == lines(other)
    model, others = (path / "model.safetensors" for path in (folder, other))
    assert model.read_bytes() == others.read_bytes()


def test_fedml_run_script_and_ranks_give_one_run(scripts, folder) -> None:
    """The command without a connection, and nothing of FedML's on the screen."""
    path = write_recipe(folder / "short.yaml")
    command = (sys.executable, "-c", NO_CONNECTIONS, "run", path, "--output", "direct")
    direct = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert direct.returncode == 0, direct.stderr
    first, second, last = direct.stdout.splitlines()
    assert [text.split()[:2] for text in (first, second)] == [["round", "1/2"], ["round", "2/2"]]
    assert last.startswith("direct: ")
    assert [text for text in direct.stderr.splitlines() if "no GPU is visible" not in text] == []

    scripted = scripts.run(SCRIPT, "--cf", path, folder=folder)
    assert scripted.returncode == 0, scripted.stderr
    assert_same(folder / "runs" / "short-seed0", folder / "direct")
    assert sum(text.startswith("round ") for text in scripted.stdout.splitlines()) == 2
    assert "round" not in scripted.stderr[scripted.stderr.rfind("[FedML") :]

    mpi = {"comm_args": {"backend": "MPI"}}
    write_recipe(folder / "ranks.yaml", mpi)
    write_recipe(folder / "silo.yaml", mpi, SILO)
    (folder / "breaking.py").write_text(
        f"import sys\nimport fednnnn_plugin\n{SCRIPT.read_text()}{BREAKING}"
    )
    job = on_ranks(2, sys.executable, "breaking.py", "--cf", "ranks.yaml", cwd=folder)
    assert_same(folder / "runs" / "ranks-seed0", folder / "direct")
    assert job.stdout.count("round 2/2") == 1
    assert job.status == 1
    assert "'NoneType' object is not callable" in job.stderr


@pytest.mark.parametrize("name", ["one_line", "own_data_and_model"])
def test_single_process_examples_of_fedmls(name: str, scripts, tmp_path: Path) -> None:
    config = EXAMPLES / "simulation.yaml"
    done = scripts.run(EXAMPLES / f"{name}.py", "--cf", config, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    records = lines(tmp_path / "runs" / "simulation-seed0")
    assert len(records) == 5
    assert records[-1]["test_acc"] > 0.5


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 1)], ids=str)
def test_signal_leaves_a_checkpoint(number, status, scripts, tmp_path) -> None:
    long = write_recipe(tmp_path / "short.yaml", comm_round=1_000, checkpoint_every=1_000)
    process = scripts.start(SCRIPT, "--cf", long, folder=tmp_path)
    folder = tmp_path / "runs" / "short-seed0"
    wait_until(lambda: (folder / "metrics.jsonl").exists() and len(lines(folder)) >= 2)
    process.send(number)
    ended = process.wait()
    assert ended.returncode == status, ended.stderr
    done = len(lines(folder))
    assert max((folder / "checkpoint").iterdir()).name.startswith(f"round-{done:06d}-")
    if number == signal.SIGTERM:
        assert ended.stderr.splitlines()[-1].startswith("terminated; ")
        assert "Traceback" not in ended.stderr
