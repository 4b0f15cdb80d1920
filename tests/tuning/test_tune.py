"""``fednnnn tune`` on digits: interrupted, terminated, shared, resumed."""

import json
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, ClassVar

import optuna
import pandas as pd
import pytest
import torch
import yaml
from click.testing import CliRunner, Result
from torch import Tensor, nn

import fednnnn_plugin as fp
from fednnnn_plugin.cli import main
from fednnnn_plugin.recipe import find_recipe, load_recipe
from fednnnn_plugin.run_folder.folder import RunFolder
from fednnnn_plugin.server.rules import RULES, decay, positive

from ..support.processes import wait_until

TRAIN = {"client_num_in_total": 10, "client_num_per_round": 3, "epochs": 1, "checkpoint_every": 1}
SMALL = [f"--set=train_args.{key}={value}" for key, value in TRAIN.items()]
SMALL = ["tune", "digits_noniid_b_fednnnn", "--study=study", *SMALL, "--set=using_gpu=false"]
TRIALS = Path("study/trials/FedNNNN")

pytestmark = pytest.mark.slow


def tune(folder: Path, *options: str) -> Result:
    """Search in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return CliRunner().invoke(main, [*SMALL, *options])


def wait_for(file: Path, process: ForkServerProcess) -> None:
    """Return when a line is written there."""
    wait_until(lambda: file.exists() and b"\n" in file.read_bytes(), lambda: not process.is_alive())


def results(folder: Path) -> tuple[str, str, list[list[object]]]:
    """What a search came to: its table, its recipe, and the accuracy of each round."""
    texts = [(folder / "study" / file).read_text() for file in ("trials.csv", "best.yaml")]
    runs = fp.read_runs(folder / TRIALS)[["beta", "round", "test_acc"]]
    return *texts, runs.to_numpy().tolist()


def test_search_shared_by_processes_that_stop(commands: Any, tmp_path: Path) -> None:
    """The first is interrupted, the second, with a helper, terminated; a third takes both over."""
    three = ("--grid", "train_args.beta=0.5,0.7,0.9", "--rounds", "6")
    trials = [tmp_path / TRIALS / f"beta={beta}" for beta in (0.5, 0.7, 0.9)]
    first = commands.start(*SMALL, *three, folder=tmp_path)
    wait_for(trials[0] / "metrics.jsonl", first)
    os.kill(first.pid, signal.SIGSTOP)
    second = commands.start(*SMALL, *three, "--resume", "--jobs", "2", folder=tmp_path)
    wait_for(trials[1] / "metrics.jsonl", second)
    os.kill(second.pid, signal.SIGSTOP)
    wait_for(trials[2] / "metrics.jsonl", second)  # of the helper
    children = Path(f"/proc/{second.pid}/task/{second.pid}/children").read_text().split()
    # A terminal sends SIGINT to all of its session. Other children are short commands, as git's.
    [helper] = [child for child in map(int, children) if os.getsid(child) == child]
    os.kill(helper, signal.SIGSTOP)

    third = commands.start(*SMALL, "--resume", folder=tmp_path)  # the rest is the study's
    for number in (signal.SIGINT, signal.SIGCONT):
        os.kill(first.pid, number)
    ended = commands.wait(first)
    assert ended.check_one_line(130) == "interrupted; continue with --resume"
    wait_for(trials[0] / "summary.json", third)  # which then waits for the second process
    os.kill(second.pid, signal.SIGTERM)
    for stopped in (second.pid, helper):
        os.kill(stopped, signal.SIGCONT)
    ended = commands.wait(second)
    assert ended.check_one_line(143) == "terminated; continue with --resume"
    assert not Path(f"/proc/{helper}").exists()
    ended = commands.wait(third)
    assert ended.status == 0, ended

    # Every point has the result that it has in a search which nothing cut short, and was run once.
    (undisturbed := tmp_path / "undisturbed").mkdir()
    assert tune(undisturbed, *three).exit_code == 0
    table, best, rounds = results(tmp_path)
    assert (table, best, rounds) == results(undisturbed)
    assert "3 of 3 trials have ended: 3 finished" in best
    lines = (tmp_path / "study" / "journal.log").read_text(encoding="utf-8").splitlines()
    folders = [json.loads(line).get("user_attr", {}).get("folder") for line in lines]
    assert sorted(Path(folder).name for folder in folders if folder) == [
        path.name for path in trials
    ]


def test_study_at_home_of_an_oddly_named_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell leaves the ~ of --study=~/… alone; the recipe's name has half a character."""
    monkeypatch.setenv("HOME", str(tmp_path))
    recipe = tmp_path / "b\x07\udce9.yaml"
    recipe.write_bytes(find_recipe("digits_noniid_b_fednnnn").read_bytes())
    words = ["tune", str(recipe), "--study=~/study", *SMALL[3:], "--grid=beta=0.7", "--rounds=1"]
    done = CliRunner().invoke(main, [*words, "--set=tracking_args.enable_wandb=true"])
    assert done.exit_code == 0, done.output
    assert "\nwarning: tracking_args.enable_wandb: true: trials do not report" in done.output
    assert load_recipe(tmp_path / "study" / "best.yaml").rule_settings["beta"] == 0.7


def test_resumed_study_mends_its_table(tmp_path: Path) -> None:
    assert tune(tmp_path, "--grid=beta=0.7", "--rounds=1").exit_code == 0
    table = tmp_path / "study" / "trials.csv"
    content = table.read_text()
    table.write_text(content.partition("\n")[2])
    assert tune(tmp_path, "--resume").exit_code == 0
    assert table.read_text() == content


def test_trial_that_another_process_runs_is_not_compared(tmp_path: Path) -> None:
    """It has a summary from its first checkpoint on."""
    assert tune(tmp_path, "--grid=beta=0.7", "--rounds=2").exit_code == 0
    run = RunFolder(tmp_path / TRIALS / "beta=0.7")
    summary = json.loads(run.summary.read_text())
    run.summary.write_text(json.dumps(summary | {"rounds": 1}))
    with run.locked("resume"):
        resumed = tune(tmp_path, "--resume")
    assert resumed.exit_code == 0, resumed.output


def test_search_by_a_recipes_first_metric(tmp_path: Path) -> None:
    (tmp_path / "first_metric.py").write_text(
        "def top(outputs, targets):\n"
        "    return outputs.softmax(1).amax(1).mean().item()\n"
        "top.higher_is_better = False\n"
    )
    metrics = ["--set=validation_args.metrics=[first_metric:top, f1_macro]", "--allow-code"]
    level = optuna.logging.get_verbosity()
    assert tune(tmp_path, "--grid=beta=0.1,0.7", "--rounds=2", *metrics).exit_code == 0
    assert optuna.logging.get_verbosity() == level < optuna.logging.ERROR
    study = tmp_path / "study"
    rows = pd.read_csv(study / "trials.csv").set_index("beta")
    measured = {}
    for beta, folder in rows["folder"].items():
        lines = (study / folder / "metrics.jsonl").read_text().splitlines()
        measured[beta] = min(json.loads(line)["test_metrics"]["top"] for line in lines)
    assert rows["value"].to_dict() == pytest.approx(measured)
    chosen = yaml.safe_load((study / "best.yaml").read_text())["train_args"]["beta"]
    assert chosen == min(measured, key=lambda beta: measured[beta])


def test_study_refuses_a_model_changed_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of trials that have finished, which are not run again, and beside a damaged table."""
    net = tmp_path / "changing_net.py"
    text = "import torch\ndef make(num_classes):\n    return torch.nn.Sequential(\n"
    text += "        torch.nn.Flatten(), torch.nn.Linear(64, num_classes, bias=True))\n"
    net.write_text(text)
    options = ["--set=model_args.model=changing_net:make", "--allow-code", "--rounds=1"]
    options += ["--grid=beta=0.5"]
    assert tune(tmp_path, *options).exit_code == 0
    (tmp_path / "study" / "trials.csv").write_text("damaged")
    net.write_text(text.replace("bias=True", "bias=False"))
    monkeypatch.delitem(sys.modules, "changing_net")
    refused = tune(tmp_path, *options, "--resume")
    assert (refused.exit_code, refused.output.count("\n")) == (2, 1)
    assert refused.output.startswith("--resume: model (code)")


def test_batches_that_a_model_cannot_train_on_are_a_failed_trial(tmp_path: Path) -> None:
    """Of a client's 25 samples the last one is alone, which has no variance."""
    x, y = torch.randn(120, 6), torch.arange(120) % 4
    found = fp.tune(
        "digits_noniid_b_fednnnn",
        model=nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 4)),
        data=(x, y, x, y),
        metrics=["f1_macro"],
        grid={"batch_size": [24, 10]},
        rounds=1,
        overrides={
            **{"client_num_in_total": 4, "client_num_per_round": 4},
            **{"partition_method": "iid", "comm_round": 1},
        },
        study=tmp_path / "study",
    )
    assert found.best == {"batch_size": 10}
    assert found.trials["state"].tolist() == ["finished", "failed"]  # 10 and 24


def test_objects_are_searched_for_outside_the_main_thread(tmp_path: Path) -> None:
    """As a notebook's server or a GUI calls it; the network learns at one of two rates only."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(160) % 4
    inputs = torch.randn(160, 6, generator=generator) + 2 * nn.functional.one_hot(labels, 6)
    settings = {"client_num_in_total": 4, "client_num_per_round": 4, "partition_method": "iid"}
    given: dict[str, Any] = {
        "model": nn.Linear(6, 4),
        "data": (inputs[:120], labels[:120], inputs[120:], labels[120:]),
        "grid": {"learning_rate": [1e-9, 0.1]},
        "overrides": settings | {"comm_round": 2, "batch_size": 10},
        "study": tmp_path / "study",
    }
    with ThreadPoolExecutor() as threads:
        found = threads.submit(fp.tune, "digits_noniid_b_fednnnn", **given).result()
        again = threads.submit(fp.tune, "digits_noniid_b_fednnnn", **given, resume=True).result()
    assert found.best == again.best == {"learning_rate": 0.1}
    assert len(list((tmp_path / "study" / "trials" / "FedNNNN").glob("l*"))) == 2
    other = given | {"model": nn.Linear(6, 4, bias=False), "resume": True}
    with pytest.raises(fp.UserError, match=r"^resume=True: model "):
        fp.tune("digits_noniid_b_fednnnn", **other)


class Inertia(fp.ClientMethod):
    keys: ClassVar = {"inertia": decay(grid=(0.0, 0.1))}

    def __init__(self, inertia: float) -> None:
        self.inertia = inertia


class OwnRule(torch.optim.SGD):
    def __init__(self, params: list[Tensor], server_lr: float) -> None:
        super().__init__(params, lr=server_lr)


def test_papers_procedure_searches_objects_of_a_rule_and_a_method(tmp_path: Path) -> None:
    """Step 2 has plain FedAvg in their places; a resumed search has the trials of both steps."""
    fp.rule(server_lr=positive(grid=(0.5, 1.0)))(OwnRule)
    del RULES["OwnRule"]  # no other test of this process is to find it
    small: dict[str, Any] = {"inertia": 0.1, "server_lr": 1.0}
    for key in ("client_num_in_total", "client_num_per_round", "epochs"):
        small[key] = TRAIN[key]
    given: dict[str, Any] = {"rule": OwnRule, "client_method": Inertia, "overrides": small}
    given |= {"rounds": 1, "study": tmp_path / "study"}
    given["grid"] = {"learning_rate": [0.05], "server_lr": [0.5, 1.0], "inertia": [0.1]}
    found = fp.tune("digits_noniid_b_fedavg", **given)
    assert found.best.keys() == {"learning_rate", "server_lr", "inertia"}
    assert found.trials["method"].tolist() == ["PaperFedAvg", *["<object>:OwnRule"] * 2]
    again = fp.tune("digits_noniid_b_fedavg", **given, resume=True)
    pd.testing.assert_frame_equal(again.trials, found.trials)
    with pytest.raises(fp.UserError, match="client_method: an object was given for it"):
        fp.tune("digits_noniid_b_fedavg", **given | {"overrides": {"client_method": "scaffold"}})
