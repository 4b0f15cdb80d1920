"""The cross-silo example as real processes over gRPC on loopback, without a network."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import load_file

from fednnnn_plugin.engine.run import run_recipe
from fednnnn_plugin.recipe import load_recipe

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "launch" / "cross_silo"
ROUNDS, CLIENTS = 3, 3

# FedML's own entry script, for the server and the clients alike.
UNMODIFIED = """
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


@pytest.fixture
def folder(tmp_path: Path, grpc_addresses) -> Path:
    """A copy of the example, on ports that are free."""
    copied = tmp_path / "federation"
    shutil.copytree(EXAMPLE, copied, ignore=shutil.ignore_patterns("output", "log*"))
    grpc_addresses(copied, CLIENTS)
    return copied


def start(folder: Path) -> subprocess.Popen[str]:
    environment = {name: v for name, v in os.environ.items() if name != "FEDNNNN_PLUGIN_DISABLE"}
    environment |= {
        "PYTHON": sys.executable,
        "HOME": str(folder.parent),
    }
    return subprocess.Popen(
        [EXAMPLE / "start.sh", folder],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> None:
    try:
        output, errors = process.communicate(timeout=240)
    finally:
        kill(process)
    assert process.returncode == 0, errors
    assert output == "done: output/evaluation_model.safetensors\n"


def kill(process: subprocess.Popen[str]) -> None:
    """End the script, the server and the clients at once."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def edit(folder: Path, **train_args: object) -> dict:
    path = folder / "fedml_config.yaml"
    content = yaml.safe_load(path.read_text())
    content["train_args"] |= train_args
    path.write_text(yaml.safe_dump(content))
    return content


def standing(folder: Path) -> int:
    """Rounds that the server's state says are done."""
    path = folder / "output" / "server_state.safetensors"
    if not path.exists():
        return 0
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["standing"])["round"]


@pytest.fixture(scope="session")
def standalone(tmp_path_factory) -> Callable[[int], tuple[dict, dict]]:
    """The served state, with momentum, and the evaluation model of the engine on the same split."""

    @cache
    def after(rounds: int) -> tuple[dict, dict]:
        content = yaml.safe_load((EXAMPLE / "fedml_config.yaml").read_text())
        content["common_args"] |= {"training_type": "simulation"}
        content["train_args"] |= {"federated_optimizer": "FedNNNN", "comm_round": rounds}
        content["train_args"].pop("client_threads")
        content |= {"comm_args": {"backend": "sp"}, "tracking_args": {}}
        content["device_args"].pop("worker_num")
        path = tmp_path_factory.mktemp("standalone") / "recipe.yaml"
        path.write_text(yaml.safe_dump(content))
        folder = path.parent / "run"
        run_recipe(load_recipe(path), folder)
        return load_file(max((folder / "checkpoint").iterdir())), load_file(
            folder / "model.safetensors"
        )

    return after


def assert_same(folder: Path, whole: tuple[dict, dict]) -> None:
    for name, expected in zip(("server_state", "evaluation_model"), whole, strict=True):
        found = load_file(folder / "output" / f"{name}.safetensors")
        assert found.keys() == expected.keys()
        assert all(torch.equal(tensor, expected[key]) for key, tensor in found.items())


def test_the_example_gives_the_bits_of_the_standalone_engine(folder, standalone) -> None:
    finish(start(folder))
    assert standing(folder) == ROUNDS
    assert_same(folder, standalone(ROUNDS))
    log = (folder / "output" / "server_0.log").read_text()
    assert log.count("'test_acc'") == ROUNDS


def test_by_name_in_an_unmodified_script_and_killed_after_round_2(
    folder, standalone, scripts
) -> None:
    (folder / "both.py").write_text(UNMODIFIED)
    edit(folder, federated_optimizer="FedNNNN", comm_round=1_000)

    def federate() -> list:
        config = "fedml_config.yaml"
        return scripts.federate(folder, config, server="both.py", client="both.py")

    processes, deadline = federate(), time.monotonic() + 240
    while standing(folder) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    for process in processes:
        process.send(signal.SIGKILL)
    assert [process.wait().returncode for process in processes] == [-signal.SIGKILL] * 4
    done = standing(folder)  # on a busy machine some rounds more
    edit(folder, start_round=done, comm_round=1)
    assert [process.wait().returncode for process in federate()] == [0] * 4
    assert_same(folder, standalone(done + 1))


def test_an_address_in_use_is_named(folder) -> None:
    port = int((folder / "grpc_ipconfig.csv").read_text().splitlines()[1].split(",")[3])
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen()
        process = start(folder)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"127.0.0.1:{port} is in use" in errors


def test_the_script_says_what_it_does_and_what_failed(tmp_path) -> None:
    help_text = subprocess.run(
        [EXAMPLE / "start.sh", "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert help_text.startswith("Start one server and three clients")
    broken = tmp_path / "broken"
    shutil.copytree(EXAMPLE, broken)
    (broken / "server.py").write_text("raise SystemExit('no such rule')")
    done = subprocess.run(
        [EXAMPLE / "start.sh", broken],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHON": sys.executable, "FEDNNNN_PLUGIN_DISABLE": "1"},
        check=False,
    )
    assert done.returncode == 1
    assert "server 0 failed; the end of output/server_0.log:\nno such rule" in done.stderr
