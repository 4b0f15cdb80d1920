"""Cross-silo federations as real processes over gRPC on loopback, without a network."""

import json
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from pandas import read_csv
from safetensors import safe_open
from safetensors.torch import load_file
from torch.testing import assert_close

import fednnnn_plugin as fp
from fednnnn_plugin.models import create_model
from fednnnn_plugin.report.build import build_report

from .conftest import Ended

pytestmark = pytest.mark.slow

FEDERATION = Path(__file__).parents[2] / "launch" / "cross_silo"
EXAMPLES = Path(__file__).with_name("examples")
SCRIPT = EXAMPLES / "step_by_step.py"
CLIENTS = 3


@pytest.fixture
def folder(tmp_path: Path, grpc_addresses) -> Path:
    """A copy of the runnable example, on ports that are free; one epoch a round."""
    copied = tmp_path / "federation"
    shutil.copytree(FEDERATION, copied, ignore=shutil.ignore_patterns("output", "log*"))
    grpc_addresses(copied, CLIENTS)
    edit(copied, epochs=1)
    return copied


def edit(folder: Path, **train_args: object) -> dict:
    path = folder / "fedml_config.yaml"
    content = yaml.safe_load(path.read_text())
    content["train_args"] |= train_args
    path.write_text(yaml.safe_dump(content))
    return content


@pytest.fixture
def plugin_on_the_server(folder: Path, scripts, fedml_alone) -> Callable[[str], list[Ended]]:
    """Run a script of the user's own data and model; three lines of the server's YAML are ours.

    The clients' hook is off, and `import fednnnn_plugin` fails there as if it were not installed.
    """
    for example in ("own_data_and_model.py", "healthcare.py"):
        shutil.copy(EXAMPLES / example, folder)
    (folder / "lacking" / "fednnnn_plugin").mkdir(parents=True)
    absent = "raise ModuleNotFoundError(\"No module named 'fednnnn_plugin'\")"
    (folder / "lacking" / "fednnnn_plugin" / "__init__.py").write_text(absent)
    path = folder / "fedml_config.yaml"
    content = yaml.safe_load(path.read_text())
    ours = ("beta", "gamma", "client_weighting", "start_round", "client_threads")
    for key in ours:
        content["train_args"].pop(key)
    content["data_args"], content["model_args"] = {"dataset": "own"}, {"model": "own"}
    content["train_args"] |= {"comm_round": 2}
    content["tracking_args"] = {"enable_wandb": False}
    path.write_text(yaml.safe_dump(content))
    content["train_args"] |= {"federated_optimizer": "FedNNNN", "beta": 0.7, "gamma": 0.8}
    content["tracking_args"] |= {"metrics_path": "records"}
    (folder / "server.yaml").write_text(yaml.safe_dump(content))

    def federate(script: str) -> list[Ended]:
        started = scripts.start_federation(folder, script, script, fedml_alone, "server.yaml")
        return [process.wait() for process in started]

    return federate


def rounds_done(folder: Path) -> int:
    """Rounds that the server's state says are done."""
    path = folder / "output" / "server_state.safetensors"
    if not path.exists():
        return 0
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["standing"])["round"]


def assert_as_the_engine(folder: Path, rounds: int) -> None:
    """The served state, with momentum, and the evaluation model of a run on the same split."""
    assert rounds_done(folder) == rounds
    content = edit(folder, federated_optimizer="FedNNNN", comm_round=rounds, start_round=0)
    content["common_args"]["training_type"] = "simulation"
    content["train_args"].pop("client_threads")
    content["device_args"].pop("worker_num")
    content |= {"comm_args": {"backend": "sp"}, "tracking_args": {}}
    path, run = folder / "recipe.yaml", folder / "run"
    path.write_text(yaml.safe_dump(content))
    fp.run(path, output=run)
    for found, expected in (
        ("server_state", max((run / "checkpoint").iterdir())),
        ("evaluation_model", run / "model.safetensors"),
    ):
        ours = load_file(folder / "output" / f"{found}.safetensors")
        assert_close(ours, load_file(expected), rtol=0, atol=0)


def test_runnable_example_gives_the_engines_bits(folder, scripts) -> None:
    edit(folder, comm_round=2)
    server, *clients = scripts.federate(folder, "server.py", "client.py")
    assert [ended.returncode for ended in (server, *clients)] == [0] * 4, server.stderr
    assert server.stderr.count("'test_acc'") == 2
    assert_as_the_engine(folder, 2)
    said = [line for line in server.stderr.splitlines() if " N/E " in line]
    assert len(said) == 2
    assert all(line.startswith("[FedML-Server") and "accuracy 0." in line for line in said)
    runs, engine = fp.read_runs(folder / "output"), fp.read_runs(folder / "run")
    for column in ("test_acc", "mean_update_norm", "mean_client_norm", "integrated_norm"):
        assert runs[column].tolist() == engine[column].tolist()


def test_killed_federation_continues_by_name(folder, scripts) -> None:
    edit(folder, federated_optimizer="FedNNNN", comm_round=1_000)
    processes = scripts.start_federation(folder, SCRIPT, SCRIPT)
    deadline = time.monotonic() + 240
    while rounds_done(folder) < 1:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    for process in processes:
        process.send(signal.SIGKILL)
    assert [process.wait().returncode for process in processes] == [-signal.SIGKILL] * 4
    done = rounds_done(folder)  # on a busy machine some rounds more
    edit(folder, start_round=done, comm_round=1)
    assert [ended.returncode for ended in scripts.federate(folder, SCRIPT, SCRIPT)] == [0] * 4
    assert fp.read_runs(folder / "output")["round"].tolist() == [*range(1, done + 2)]
    assert_as_the_engine(folder, done + 1)


def test_custom_trainers_models_are_averaged(folder, scripts) -> None:
    """Of FedML's example: the evaluation model is w_0 + S, and the served one β E away."""
    beta = edit(folder, federated_optimizer="FedNNNN", comm_round=1)["train_args"]["beta"]
    script = EXAMPLES / "cross_silo_custom_trainer.py"
    server, *clients = scripts.federate(folder, script, script)
    assert [ended.returncode for ended in (server, *clients)] == [0] * 4, server.stderr
    initial, state = create_model("nnnn_digits", 0).state_dict(), {}
    for name in ("evaluation_model", "server_state"):
        state[name] = load_file(folder / "output" / f"{name}.safetensors")
    moved = {
        name: torch.cat([(found[key] - initial[key]).flatten() for key in initial]).norm().item()
        for name, found in state.items()
    }
    [record] = fp.read_runs(folder / "output").to_dict("records")
    assert record["clients"] == CLIENTS
    assert moved["evaluation_model"] == pytest.approx(record["mean_update_norm"], rel=1e-4)
    assert moved["server_state"] == pytest.approx(beta * record["mean_client_norm"], rel=1e-4)


def test_clients_without_the_plugin_follow_the_server(folder, plugin_on_the_server) -> None:
    server, *clients = plugin_on_the_server("own_data_and_model.py")
    assert [ended.returncode for ended in (server, *clients)] == [0] * 4, server.stderr
    assert "FedNNNN: beta 0.7, gamma 0.8" in server.stderr
    assert not [ended for ended in clients if "fednnnn" in ended.stderr.lower()]
    runs = fp.read_runs(folder / "records")
    assert runs["round"].tolist() == [1, 2]
    assert (runs["test_acc"] > 0.1).all()
    moved = runs["server_update_norm"][0] / runs["mean_client_norm"][0]
    assert moved == pytest.approx(0.7)  # β E, which no average of FedML's is


def test_healthcares_aggregator_tests_their_average(folder, plugin_on_the_server) -> None:
    server, *clients = plugin_on_the_server("healthcare.py")
    assert [ended.returncode for ended in (server, *clients)] == [0] * 4, server.stderr
    accuracies = fp.read_runs(folder / "records")["test_acc"].tolist()
    assert len(accuracies) == 2
    assert all(0.1 < accuracy < 1 for accuracy in accuracies)
    said = [line for line in server.stderr.splitlines() if " N/E " in line]
    assert all(f"accuracy {x:.4f}" in line for x, line in zip(accuracies, said, strict=True))
    build_report([folder / "records"], folder / "report")
    rounds = read_csv(folder / "report" / "rounds.csv")
    assert rounds["test_acc"].tolist() == pytest.approx(accuracies)
    ratio = rounds["mean_update_norm"] / rounds["mean_client_norm"]
    assert ((ratio > 0) & (ratio <= 1)).all()
