"""Cross-silo federations as real processes over gRPC on loopback, without a network."""

import json
import shutil
import signal
from pathlib import Path

import pytest
import yaml
from pandas import read_csv
from safetensors import safe_open
from safetensors.torch import load_file
from torch.testing import assert_close

import fednnnn_plugin as fp
from fednnnn_plugin.report.build import build_report

from .conftest import wait_until

pytestmark = pytest.mark.slow

FEDERATION = Path(__file__).parents[2] / "launch" / "cross_silo"
EXAMPLES = Path(__file__).with_name("examples")
SCRIPT = EXAMPLES / "step_by_step.py"
CLIENTS = 2


@pytest.fixture
def folder(tmp_path: Path, grpc_addresses) -> Path:
    """A copy of the runnable example, on ports that are free; one epoch a round."""
    copied = tmp_path / "federation"
    shutil.copytree(FEDERATION, copied, ignore=shutil.ignore_patterns("output", "log*"))
    grpc_addresses(copied, CLIENTS)
    edit(copied, epochs=1, client_num_in_total=CLIENTS, client_num_per_round=CLIENTS)
    return copied


def edit(folder: Path, **train_args: object) -> dict:
    path = folder / "fedml_config.yaml"
    content = yaml.safe_load(path.read_text())
    content["train_args"] |= train_args
    content["device_args"]["worker_num"] = CLIENTS
    path.write_text(yaml.safe_dump(content))
    return content


def rounds_done(folder: Path) -> int:
    """Rounds that the server's state says are done."""
    path = folder / "output" / "server_state.safetensors"
    if not path.exists():
        return 0
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["standing"])["round"]


def waited_for(processes: list) -> list:
    ended = [process.wait() for process in processes]
    assert {one.status for one in ended} == {0}, ended[0].stderr
    return ended


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


def test_killed_federation_continues_with_the_engines_bits(folder, scripts) -> None:
    """The runnable example, killed, and continued by a script that names the method."""
    edit(folder, comm_round=1_000)
    processes = scripts.start_federation(folder, "server.py", "client.py")
    wait_until(lambda: rounds_done(folder))
    for process in processes:
        process.send(signal.SIGKILL)
    assert {process.wait().status for process in processes} == {-signal.SIGKILL}
    done = rounds_done(folder)  # on a busy machine some rounds more
    edit(folder, start_round=done, comm_round=1, federated_optimizer="FedNNNN")
    server, *_ = waited_for(scripts.start_federation(folder, SCRIPT, SCRIPT))
    [said] = [line for line in server.stderr.splitlines() if " N/E " in line]
    assert said.startswith("[FedML-Server")
    assert "accuracy 0." in said
    assert_as_the_engine(folder, done + 1)
    runs, engine = fp.read_runs(folder / "output"), fp.read_runs(folder / "run")
    for column in ("round", "mean_update_norm", "mean_client_norm", "integrated_norm"):
        assert runs[column].tolist() == engine[column].tolist()
    # Perhaps it was killed before it had tested.
    assert runs["test_acc"].iloc[-1] == engine["test_acc"].iloc[-1]


def test_healthcares_server_alone_has_the_plugin(folder, scripts, fedml_alone) -> None:
    """Its own data, model and aggregator, which tests; three lines of the server's YAML are ours.

    The clients' hook is off, and ``import fednnnn_plugin`` fails there as if it were not installed.
    """
    for example in ("own_data_and_model.py", "healthcare.py"):
        shutil.copy(EXAMPLES / example, folder)
    (folder / "lacking" / "fednnnn_plugin").mkdir(parents=True)
    absent = "raise ModuleNotFoundError(\"No module named 'fednnnn_plugin'\")"
    (folder / "lacking" / "fednnnn_plugin" / "__init__.py").write_text(absent)
    path = folder / "fedml_config.yaml"
    content = yaml.safe_load(path.read_text())
    for key in ("beta", "gamma", "client_weighting", "start_round", "client_threads"):
        content["train_args"].pop(key)
    content["data_args"], content["model_args"] = {"dataset": "own"}, {"model": "own"}
    content["train_args"] |= {"comm_round": 2}
    content["tracking_args"] = {"enable_wandb": False}
    path.write_text(yaml.safe_dump(content))
    content["train_args"] |= {"federated_optimizer": "FedNNNN", "beta": 0.7, "gamma": 0.8}
    content["tracking_args"] |= {"metrics_path": "records"}
    (folder / "server.yaml").write_text(yaml.safe_dump(content))

    words = (folder, "healthcare.py", "healthcare.py", fedml_alone, "server.yaml")
    server, *clients = waited_for(scripts.start_federation(*words))
    assert not [ended for ended in clients if "fednnnn" in ended.stderr.lower()]
    assert "FedNNNN: beta 0.7, gamma 0.8" in server.stderr
    build_report([folder / "records"], folder / "report")
    rounds = read_csv(folder / "report" / "rounds.csv")
    assert rounds["round"].tolist() == [1, 2]
    assert rounds["test_acc"].between(0.1, 1, inclusive="neither").all()
    said = [line for line in server.stderr.splitlines() if " N/E " in line]
    for accuracy, line in zip(rounds["test_acc"], said, strict=True):
        assert f"accuracy {accuracy:.4f}" in line
    ratio = rounds["mean_update_norm"] / rounds["mean_client_norm"]
    assert ((ratio > 0) & (ratio <= 1)).all()
    moved = rounds["server_update_norm"][0] / rounds["mean_client_norm"][0]
    assert moved == pytest.approx(0.7)  # β E, which no average of FedML's is
