"""Real processes: ``fedml run``, a FedML script alone and under MPI, and how they end."""

import json
import re
import signal
import sys
from pathlib import Path

import pytest
import yaml

from fednnnn_plugin.recipe import find_recipe

from ..support.processes import wait_until
from ..support.ranks import BIN, on_ranks

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).with_name("examples")
SCRIPT = EXAMPLES / "step_by_step.py"
# A simulation, and after it a cross-silo federation whose server breaks.
BREAKING = f"""
import sys
sys.path.append({str(Path(__file__).parent)!r})
import fedml.cross_silo, fednnnn_plugin, forks
forks.hasten()
{SCRIPT.read_text()}
    sys.argv[2] = "silo.yaml"
    fednnnn_plugin.FedNNNNAggregator.aggregate = None
    args = fedml.init()
    dataset, output_dim = fedml.data.load(args)
    FedMLRunner(args, device, dataset, fedml.model.create(args, output_dim)).run()
"""
MPI = {"comm_args": {"backend": "MPI"}}
SILO = {
    "common_args": {"training_type": "cross_silo", "scenario": "horizontal"},
    "data_args": {"partition_method": "iid"},
    "train_args": {"client_num_in_total": 1, "client_num_per_round": 1},
    "device_args": {"worker_num": 1},
}
# FedML's methods need these too.
FEDMLS = {"server_optimizer": "adagrad", "server_lr": 0.1, "ci": 0}
FEDMLS |= {"weight_decay": 0.0, "comm_round": 2, "epochs": 1, "client_num_in_total": 4}


def write_recipe(path: Path, *sections: dict, **train_args: object) -> Path:
    """Write a shortened copy of the quick start's recipe."""
    content = yaml.safe_load(find_recipe("digits_noniid_b_fednnnn").read_text())
    short = {"comm_round": 2, "client_num_in_total": 10, "client_num_per_round": 3, "epochs": 1}
    first = {"train_args": short | train_args, "device_args": {"using_gpu": False}}
    for changed in (first, *sections):
        for section, values in changed.items():
            content.setdefault(section, {}).update(values)
    path.write_text(yaml.safe_dump(content))
    return path


def lines(folder: Path) -> list[str]:
    return (folder / "metrics.jsonl").read_text().splitlines()


def test_fedml_run_script_and_ranks_give_one_run(scripts, tmp_path, content, monkeypatch) -> None:
    """The command looks for no network, and nothing of FedML's is on its screen."""
    path = write_recipe(tmp_path / "short.yaml")
    direct = scripts.run(BIN / "fedml", "run", path, "--output", "direct", folder=tmp_path)
    first, second, last = direct.stdout.splitlines()
    assert [text.split()[:2] for text in (first, second)] == [["round", "1/2"], ["round", "2/2"]]
    assert last.startswith("direct: ")
    assert [text for text in direct.stderr.splitlines() if "no GPU is visible" not in text] == []

    scripted = scripts.run(SCRIPT, "--cf", path, folder=tmp_path)
    assert sum(text.startswith("round ") for text in scripted.stdout.splitlines()) == 2
    assert "round" not in scripted.stderr[scripted.stderr.rfind("[FedML") :]

    own = {"HOME": str(tmp_path), "FEDNNNN_PLUGIN_DISABLE": "0", "OMP_NUM_THREADS": "1"}
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    write_recipe(tmp_path / "ranks.yaml", MPI)
    write_recipe(tmp_path / "silo.yaml", MPI, SILO)
    (tmp_path / "breaking.py").write_text(BREAKING)
    job = on_ranks(2, sys.executable, "breaking.py", "--cf", "ranks.yaml", cwd=tmp_path)
    assert job.stdout.count("round 2/2") == 1
    assert job.status == 1
    assert "'NoneType' object is not callable" in job.stderr
    for name in ("short", "ranks"):
        assert content(tmp_path / "runs" / f"{name}-seed0") == content(tmp_path / "direct")


def test_script_with_own_data_runs_any_method(scripts, fedml_alone, tmp_path) -> None:
    """Ours, and FedML's with every accuracy and loss that they log without the plugin.

    A method of nobody's ends both alike.
    """
    script, config = EXAMPLES / "own_data_and_model.py", EXAMPLES / "simulation.yaml"
    scripts.run(script, "--cf", config, folder=tmp_path)
    records = lines(tmp_path / "runs" / "simulation-seed0")
    assert len(records) == 5
    assert json.loads(records[-1])["test_acc"] > 0.5
    content, started = yaml.safe_load(config.read_text()), []
    content["train_args"] |= FEDMLS
    for method in ("FedOpt", "NoSuchMethod"):
        content["train_args"]["federated_optimizer"] = method
        path = tmp_path / f"{method}.yaml"
        path.write_text(yaml.safe_dump(content))
        words = (script, "--cf", path)
        started.append([kind.start(*words, folder=tmp_path) for kind in (scripts, fedml_alone)])
    for pair in started:
        ended = [process.wait() for process in pair]
        shown = [done.stdout + done.stderr for done in ended]
        ours, theirs = (re.findall(r"'t\w+_acc': .*|Exception: .*", text) for text in shown)
        assert ours == theirs
        assert len(ours) == (1 if pair is started[-1] else 4), shown[1]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 1)], ids=str)
def test_signal_leaves_a_checkpoint(number, status, scripts, tmp_path) -> None:
    long = write_recipe(tmp_path / "short.yaml", comm_round=1_000, checkpoint_every=1_000)
    process = scripts.start(SCRIPT, "--cf", long, folder=tmp_path)
    folder = tmp_path / "runs" / "short-seed0"
    wait_until(lambda: (folder / "metrics.jsonl").exists() and len(lines(folder)) >= 2)
    process.send(number)
    ended = process.wait()
    assert ended.status == status, ended.stderr
    done = len(lines(folder))
    assert max((folder / "checkpoint").iterdir()).name.startswith(f"round-{done:06d}.")
    if number == signal.SIGTERM:
        assert ended.stderr.splitlines()[-1].startswith("terminated; ")
        assert "Traceback" not in ended.stderr
