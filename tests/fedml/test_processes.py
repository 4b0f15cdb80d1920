"""Real processes: ``fedml run``, an unmodified FedML script, and no connection from either."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import fednnnn_plugin

pytestmark = pytest.mark.slow

RECIPES = Path(fednnnn_plugin.__file__).parents[1] / "recipes"
if not RECIPES.is_dir():  # installed from a wheel
    RECIPES = Path(fednnnn_plugin.__file__).parent / "recipes"

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
    """Write a shortened copy of the quick start's recipe."""

    def write(name: str = "short.yaml", backend: str = "sp", **train_args: object) -> Path:
        content = yaml.safe_load((RECIPES / "digits_noniid_b_fednnnn.yaml").read_text())
        short = {"comm_round": 2, "client_num_in_total": 10, "client_num_per_round": 3}
        content["train_args"] |= short | {"epochs": 1} | train_args
        content["device_args"]["using_gpu"] = False
        content["comm_args"]["backend"] = backend
        path = tmp_path / name
        path.write_text(yaml.safe_dump(content))
        return path

    return write


def lines(folder: Path) -> list[dict]:
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in found]


def test_fedml_run_runs_a_recipe_without_a_connection(run_python, recipe, tmp_path) -> None:
    done = run_python("-c", NO_CONNECTIONS, "run", recipe(), "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert [line["round"] for line in lines(tmp_path / "out")] == [1, 2]
    assert [text.split()[:2] for text in done.stdout.splitlines()[:2]] == [
        ["round", "1/2"],
        ["round", "2/2"],
    ]
    assert "FedML" not in done.stdout + done.stderr


def test_the_guard_sees_a_connection(run_python) -> None:
    program = NO_CONNECTIONS.replace(
        "from fedml", "import socket\nsocket.create_connection(('localhost', 1))\n#"
    )
    assert run_python("-c", program).returncode == 99


def test_an_unmodified_script_gives_the_bits_of_fedml_run(run_python, recipe, tmp_path) -> None:
    path = recipe()
    script = tmp_path / "main.py"
    script.write_text(ENTRY_SCRIPT)
    scripted = run_python(script, "--cf", path, HOME=str(tmp_path))
    assert scripted.returncode == 0, scripted.stderr
    command = Path(sys.executable).with_name("fedml")
    direct = run_python(command, "run", path, "--output", tmp_path / "direct")
    assert direct.returncode == 0, direct.stderr
    run_folder = tmp_path / "work" / "runs" / "short-seed0"
    for name in ("model.safetensors",):
        assert (run_folder / name).read_bytes() == (tmp_path / "direct" / name).read_bytes()
    assert lines(run_folder) == lines(tmp_path / "direct")
    rounds = [line for line in scripted.stdout.splitlines() if line.startswith("round ")]
    assert len(rounds) == 2
    last_of_fedml = scripted.stderr.rfind("[FedML")
    assert "round" not in scripted.stderr[last_of_fedml:]

    again = run_python(script, "--cf", path, HOME=str(tmp_path))
    assert again.returncode == 1
    assert "runs/short-seed0: it already holds a run" in again.stderr


def test_a_mistake_in_a_script_names_file_key_and_value(run_python, recipe, tmp_path) -> None:
    script = tmp_path / "main.py"
    script.write_text(ENTRY_SCRIPT)
    path = recipe("bad.yaml", beta=-1)
    done = run_python(script, "--cf", path, HOME=str(tmp_path))
    assert f"{path}: train_args.beta: -1: must be a finite number greater than 0" in done.stderr


@pytest.fixture
def run_ranks(run_python) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the script on several ranks of this machine."""
    mpirun = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun")
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

    def run(ranks: int, *arguments: str | Path, **environment: str):
        launcher = [mpirun, "--oversubscribe", "-np", str(ranks), sys.executable]
        start = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)"
        return run_python("-c", start, *launcher, *arguments, **as_root | environment)

    return run


def test_the_script_gives_the_same_bits_on_two_ranks(
    run_python, run_ranks, recipe, tmp_path
) -> None:
    script = tmp_path / "main.py"
    script.write_text(ENTRY_SCRIPT)
    one, two = recipe("one.yaml"), recipe("two.yaml", backend="MPI")
    assert run_python(script, "--cf", one, HOME=str(tmp_path)).returncode == 0
    done = run_ranks(2, script, "--cf", two, HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    runs = tmp_path / "work" / "runs"
    first, second = (runs / f"{name}-seed0" / "model.safetensors" for name in ("one", "two"))
    assert first.read_bytes() == second.read_bytes()
    assert done.stdout.count("round 2/2") == 1


def test_a_rank_that_has_no_data_ends_the_job(run_ranks, recipe, tmp_path) -> None:
    script = tmp_path / "main.py"
    elsewhere = (
        "    if args.rank == 1:\n"
        "        args.dataset, args.data_cache_dir, args.download = 'mnist', '/nowhere', False\n"
    )
    script.write_text(ENTRY_SCRIPT.replace("    dataset, ", elsewhere + "    dataset, "))
    done = run_ranks(2, script, "--cf", recipe(backend="MPI"), HOME=str(tmp_path))
    assert done.returncode == 2
    assert "/nowhere" in done.stderr
