"""Cross-silo federations as real processes over gRPC on loopback, without a network."""

import json
import random
import shutil
import signal
import socket
from itertools import islice
from pathlib import Path

import pytest
import yaml
from safetensors import safe_open
from safetensors.torch import load_file
from torch.testing import assert_close

import fednnnn_plugin as fp

from ..support.processes import wait_until
from .conftest import Script, Scripts

pytestmark = pytest.mark.slow

FEDERATION = Path(__file__).parents[2] / "launch" / "cross_silo"
EXAMPLES = Path(__file__).with_name("examples")
SCRIPT = EXAMPLES / "step_by_step.py"
CLIENTS, CONFIG = 2, "fedml_config.yaml"


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the runnable example, on ports that are free; one epoch a round.

    They stay so: they are none of those that the kernel gives to connections.
    """
    copied = tmp_path / "federation"
    shutil.copytree(FEDERATION, copied, ignore=shutil.ignore_patterns("output", "log*"))
    drawn = random.sample(range(20_000, 32_000), 1_000)
    ports = islice((port for port in drawn if not listens(port)), CLIENTS + 1)
    rows = ["eid,rank,grpc_server_ip,grpc_server_port,ingress_ip"]
    rows += [f"{rank},{rank},127.0.0.1,{port}," for rank, port in enumerate(ports)]
    (copied / "grpc_ipconfig.csv").write_text("\n".join(rows) + "\n")
    edit(copied, epochs=1, client_num_in_total=CLIENTS, client_num_per_round=CLIENTS)
    return copied


def start(
    folder: Path, server: str | Path, client: str | Path, *kinds: Scripts, config: str = CONFIG
) -> list[Script]:
    """Start a server and its clients, which find nothing of this package in ``lacking``."""
    words = ("--cf", config, "--rank", "0", "--role", "server")
    started = [kinds[0].start(server, *words, folder=folder)]
    address = (folder / "grpc_ipconfig.csv").read_text().splitlines()[1]
    wait_until(lambda: listens(int(address.split(",")[3])))
    for rank in range(1, CLIENTS + 1):
        words = ("--cf", CONFIG, "--rank", str(rank), "--role", "client")
        started.append(kinds[-1].start(client, *words, folder=folder, path=f"{folder}/lacking"))
    return started


def edit(folder: Path, **train_args: object) -> dict:
    path = folder / CONFIG
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
        return json.loads(file.metadata()["fednnnn_plugin"])["round"]


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
    processes = start(folder, "server.py", "client.py", scripts)
    wait_until(lambda: rounds_done(folder))
    for process in processes:
        process.send(signal.SIGKILL)
    assert {process.wait().status for process in processes} == {-signal.SIGKILL}
    done = rounds_done(folder)  # on a busy machine some rounds more
    edit(folder, start_round=done, comm_round=1, federated_optimizer="FedNNNN")
    server, *_ = waited_for(start(folder, SCRIPT, SCRIPT, scripts))
    [said] = [line for line in server.stderr.splitlines() if " N/E " in line]
    assert said.startswith("[FedML-Server")
    assert "accuracy 0." in said
    assert_as_the_engine(folder, done + 1)
    runs, engine = fp.read_runs(folder / "output"), fp.read_runs(folder / "run")
    for column in ("round", "mean_update_norm", "mean_client_norm", "integrated_norm"):
        assert runs[column].tolist() == engine[column].tolist()
    # Perhaps it was killed before it had tested.
    assert runs["test_acc"].iloc[-1] == engine["test_acc"].iloc[-1]


HELD = EXAMPLES / "held.py"


def trainings(folder: Path, rank: int) -> int:
    path = folder / f"trained-{rank}"
    return len(path.read_text().split()) if path.exists() else 0


def start_one(folder: Path, rank: int, scripts: Scripts) -> Script:
    role = "client" if rank else "server"
    words = ("--cf", CONFIG, "--rank", str(rank), "--role", role)
    return scripts.start(HELD, *words, folder=folder)


def kill(script: Script) -> None:
    script.send(signal.SIGKILL)
    assert script.wait().status == -signal.SIGKILL


def test_killed_server_continues_by_itself(folder, scripts) -> None:
    """Started by the same command; clients that lived on end, and are started by their units."""
    edit(folder, start_round="auto", comm_round=6)
    server, *clients = start(folder, HELD, HELD, scripts)
    wait_until(lambda: rounds_done(folder))
    kill(server)
    again = [start_one(folder, 0, scripts)]
    for rank, client in enumerate(clients, 1):
        client.wait()
        again.append(start_one(folder, rank, scripts))
    waited_for(again)
    assert rounds_done(folder) == 6
    runs = fp.read_runs(folder / "output")
    assert runs["round"].tolist() == [*range(1, 7)]
    assert runs["clients"].tolist() == [2] * 6
    ended = start_one(folder, 0, scripts).wait()
    assert ended.status == 2
    assert ended.stderr.strip().splitlines()[-1].startswith("error: train_args.comm_round: 6: all ")


def test_client_that_restarts_trains_in_the_round(folder, scripts) -> None:
    """The server averages each round once, and all processes end after the last one.

    Killed while it trains, and again after its upload, in a round that waits for the other client,
    the first trains that round again; that it vanishes from the last round does not matter.
    """
    edit(folder, comm_round=2)
    for name in ("hold-1-0", "hold-2-0", "hold-2-1"):
        (folder / name).touch()
    server, first, second = start(folder, HELD, HELD, scripts)

    def uploads(count: int) -> None:
        wait_until(lambda: server.said().count("add_model. index = 0") >= count)

    wait_until(lambda: trainings(folder, 1))
    kill(first)
    (folder / "hold-1-0").unlink()
    for count in (1, 2):
        again = start_one(folder, 1, scripts)
        wait_until(lambda number=count: server.said().count("has started again") >= number)
        uploads(count)
        if count == 1:
            kill(again)
    (folder / "hold-2-0").unlink()
    uploads(3)
    kill(again)
    (folder / "hold-2-1").unlink()
    waited_for([server, second])
    assert rounds_done(folder) == 2
    assert fp.read_runs(folder / "output")["clients"].tolist() == [2, 2]
    assert (trainings(folder, 1), trainings(folder, 2)) == (4, 2)


def test_client_that_vanishes_ends_the_server_with_the_way_on(folder, scripts) -> None:
    """Killed between its upload and the next message."""
    edit(folder, comm_round=2)
    (folder / "hold-2-0").touch()
    server, first, second = start(folder, HELD, HELD, scripts)
    wait_until(lambda: "add_model. index = 0" in server.said())
    kill(first)
    (folder / "hold-2-0").unlink()
    ended = server.wait()
    last = ended.stderr.strip().splitlines()[-1]
    assert ended.status == 1
    assert last.startswith("error: the client of rank 1 cannot be reached (UNAVAILABLE): round 1 ")
    assert last.endswith("with start_round: 1 and comm_round: 1")
    assert "Traceback" not in ended.stderr
    kill(second)
    assert rounds_done(folder) == 1


def test_server_alone_has_the_plugin(folder, scripts, fedml_alone) -> None:
    """A script's own data and model; three lines of the server's YAML are ours.

    The clients' hook is off, and ``import fednnnn_plugin`` fails there as if it were not installed.
    """
    (folder / "lacking").mkdir()
    absent = "raise ModuleNotFoundError(\"No module named 'fednnnn_plugin'\")"
    (folder / "lacking" / "fednnnn_plugin.py").write_text(absent)
    content = edit(folder, comm_round=2)
    for key in ("beta", "gamma", "client_weighting", "start_round", "client_threads"):
        content["train_args"].pop(key)
    content["data_args"], content["model_args"] = {"dataset": "own"}, {"model": "own"}
    content["tracking_args"] = {"enable_wandb": False}
    (folder / CONFIG).write_text(yaml.safe_dump(content))
    content["train_args"] |= {"federated_optimizer": "FedNNNN", "beta": 0.7, "gamma": 0.8}
    content["tracking_args"] |= {"metrics_path": "records"}
    (folder / "server.yaml").write_text(yaml.safe_dump(content))

    script = EXAMPLES / "own_data_and_model.py"
    words = (folder, script, script, scripts, fedml_alone)
    server, *clients = waited_for(start(*words, config="server.yaml"))
    assert not [ended for ended in clients if "fednnnn" in ended.stderr.lower()]
    assert "FedNNNN: beta 0.7, gamma 0.8" in server.stderr
    rounds = fp.read_runs(folder / "records")
    assert rounds["round"].tolist() == [1, 2]
    assert rounds["test_acc"].between(0.1, 1, inclusive="neither").all()
    moved = rounds["server_update_norm"][0] / rounds["mean_client_norm"][0]
    assert moved == pytest.approx(0.7)  # β E, which no average of FedML's is
