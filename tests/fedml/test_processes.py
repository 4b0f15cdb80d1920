"""Real processes: ``fedml run``, a FedML script alone and under MPI, and how they end."""

import json
import os
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


@pytest.fixture
def recipe(tmp_path: Path) -> Callable[..., Path]:
    """Write a shortened copy of the quick start's recipe; keywords are its ``train_args``."""

    def write(sections: dict | None = None, **train_args: object) -> Path:
        content = yaml.safe_load(find_recipe("digits_noniid_b_fednnnn").read_text())
        short = {"comm_round": 2, "client_num_in_total": 10, "client_num_per_round": 3}
        content["train_args"] |= short | {"epochs": 1} | train_args
        content["device_args"]["using_gpu"] = False
        for section, values in (sections or {}).items():
            content.setdefault(section, {}).update(values)
        path = tmp_path / "short.yaml"
        path.write_text(yaml.safe_dump(content))
        return path

    return write


def lines(folder: Path) -> list[dict]:
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in found]


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def run(*command: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {"HOME": str(folder), "FEDNNNN_PLUGIN_DISABLE": "0", "OMP_NUM_THREADS": "1"}
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | environment | as_root,
        timeout=300,
        check=False,
    )


def test_fedml_run_and_script_give_one_run(scripts, recipe, tmp_path) -> None:
    """The command without a connection, and nothing of FedML's on the screen."""
    path, folder = recipe(), tmp_path / "runs" / "short-seed0"
    fedml = (sys.executable, "-c", NO_CONNECTIONS, "run")
    direct = run(*fedml, path, "--output", "direct", folder=tmp_path)
    assert direct.returncode == 0, direct.stderr
    first, second, last = direct.stdout.splitlines()
    assert [text.split()[:2] for text in (first, second)] == [["round", "1/2"], ["round", "2/2"]]
    assert last.startswith("direct: ")
    assert [text for text in direct.stderr.splitlines() if "no GPU is visible" not in text] == []

    scripted = scripts.run(SCRIPT, "--cf", path, folder=tmp_path)
    assert scripted.returncode == 0, scripted.stderr
    assert weights(folder) == weights(tmp_path / "direct")
    assert lines(folder) == lines(tmp_path / "direct")
    assert sum(text.startswith("round ") for text in scripted.stdout.splitlines()) == 2
    assert "round" not in scripted.stderr[scripted.stderr.rfind("[FedML") :]


@pytest.mark.parametrize("name", ["one_line", "own_data_and_model"])
def test_fedmls_single_process_examples(name: str, scripts, tmp_path: Path) -> None:
    config = EXAMPLES / "simulation.yaml"
    done = scripts.run(EXAMPLES / f"{name}.py", "--cf", config, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    records = lines(tmp_path / "runs" / "simulation-seed0")
    assert len(records) == 5
    assert records[-1]["test_acc"] > 0.5


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 1)], ids=str)
def test_signal_leaves_a_checkpoint(number, status, scripts, recipe, tmp_path) -> None:
    long = recipe(comm_round=1_000, checkpoint_every=1_000)
    process = scripts.start(SCRIPT, "--cf", long, folder=tmp_path)
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


def run_two_ranks(*arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    launcher = (
        Path(sys.executable).with_name("mpirun"),
        "--oversubscribe",
        "-np",
        "2",
        sys.executable,
    )
    return run(*launcher, *arguments, folder=folder)


def test_two_ranks_give_the_bytes_of_one(scripts, recipe, tmp_path) -> None:
    fednnnn = Path(sys.executable).with_name("fednnnn")
    alone = scripts.run(fednnnn, "run", recipe(), "--output", "one", folder=tmp_path)
    assert alone.returncode == 0, alone.stderr
    script, path = tmp_path / "twice.py", recipe(sections={"comm_args": {"backend": "MPI"}})
    elsewhere = (
        "    if args.rank == 1:\n"
        "        args.dataset, args.data_cache_dir, args.download = 'mnist', '/nowhere', False\n"
        "    fedml.data.load(args)\n"
    )
    script.write_text(SCRIPT.read_text() + elsewhere)
    done = run_two_ranks(script, "--cf", path, folder=tmp_path)
    assert weights(tmp_path / "runs/short-seed0") == weights(tmp_path / "one")
    assert done.stdout.count("round 2/2") == 1
    assert done.returncode == 2
    assert "/nowhere" in done.stderr


def test_failing_server_over_mpi_ends_its_clients(recipe, tmp_path) -> None:
    script = tmp_path / "breaking.py"
    breaks = "import fednnnn_plugin\nfednnnn_plugin.FedNNNNAggregator.aggregate = None\n"
    script.write_text(SCRIPT.read_text().replace("if __name__", breaks + "if __name__"))
    sections = {
        "common_args": {"training_type": "cross_silo", "scenario": "horizontal"},
        "comm_args": {"backend": "MPI"},
        "data_args": {"partition_method": "iid"},
        "device_args": {"worker_num": 1},
    }
    path = recipe(sections=sections, client_num_in_total=1, client_num_per_round=1)
    done = run_two_ranks(script, "--cf", path, folder=tmp_path)
    assert done.returncode == 1
    assert "'NoneType' object is not callable" in done.stderr
