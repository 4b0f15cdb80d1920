"""``fednnnn tune`` on digits: interrupted, killed, resumed, shared, pruned."""

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest
import yaml
from click.testing import CliRunner, Result

import fednnnn_plugin as fp
from fednnnn_plugin.cli import main
from fednnnn_plugin.recipe import find_recipe, load_recipe

FEDNNNN = Path(sys.executable).with_name("fednnnn")
# Small, so that a trial takes seconds: six clients, an epoch.
TRAIN = {"client_num_in_total": 10, "client_num_per_round": 6, "epochs": 1, "checkpoint_every": 1}
SMALL = [f"--set=train_args.{key}={value}" for key, value in TRAIN.items()]
SMALL = ["tune", "digits_noniid_b_fednnnn", "--study=study", *SMALL, "--set=using_gpu=false"]
THREE = ["--grid", "train_args.beta=0.5,0.7,0.9", "--rounds", "8"]

pytestmark = pytest.mark.slow

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a search in a process of its own."""
    running = []

    def started(*options: str) -> "subprocess.Popen[str]":
        how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        running.append(subprocess.Popen([FEDNNNN, *SMALL, *options], cwd=tmp_path, **how))
        return running[-1]

    yield started
    for process in running:
        process.kill()
        process.communicate()


def tune(folder: Path, *options: str) -> Result:
    """Search in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return CliRunner().invoke(main, [*SMALL, *options])


def wait_for_round(folder: Path, name: str, process: "subprocess.Popen[str]") -> None:
    """Return when a trial has finished its first round, well before its last."""
    metrics = folder / "study" / "trials" / "FedNNNN" / name / "metrics.jsonl"
    while not (metrics.exists() and b"\n" in metrics.read_bytes()):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    assert tune(folder, *THREE).exit_code == 0
    return folder


def is_as_undisturbed(folder: Path, undisturbed: Path) -> None:
    """Every point has the result that it has in a search which nothing cut short."""
    for file in ("trials.csv", "best.yaml"):
        text = (folder / "study" / file).read_text(encoding="utf-8")
        assert text == (undisturbed / "study" / file).read_text(encoding="utf-8")
    assert "3 of 3 trials have ended: 3 finished" in text
    columns = ["beta", "round", "test_acc"]
    runs = (
        fp.read_runs(place / "study/trials/FedNNNN")[columns] for place in (folder, undisturbed)
    )
    assert next(runs).equals(next(runs))
    lines = (folder / "study" / "journal.log").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line).get("user_attrs", {}).get("row") for line in lines]
    times = Counter(Path(row["folder"]).name for row in rows if row)
    assert times == Counter(["beta=0.5", "beta=0.7", "beta=0.9"])


def test_search_of_an_interrupted_process_is_taken_over(
    tmp_path: Path, undisturbed: Path, start: Start
) -> None:
    """Of two, the other one does what the first was at."""
    first = start(*THREE)
    wait_for_round(tmp_path, "beta=0.5", first)
    second = start(*THREE, "--resume")
    wait_for_round(tmp_path, "beta=0.7", second)
    first.send_signal(signal.SIGINT)
    _, errors = second.communicate(timeout=300)
    assert second.returncode == 0, errors
    _, errors = first.communicate(timeout=300)
    assert (first.returncode, errors) == (130, "interrupted; continue with --resume\n")
    is_as_undisturbed(tmp_path, undisturbed)


def test_search_that_is_terminated_ends_its_helpers(
    tmp_path: Path, undisturbed: Path, start: Start
) -> None:
    """Which ignore SIGINT: a terminal sends it to all, while they are importing or later."""
    process = start(*THREE, "--jobs", "2")
    wait_for_round(tmp_path, "beta=0.7", process)
    helpers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for helper in helpers:
        ignored = Path(f"/proc/{helper}/status").read_text().partition("SigIgn:")[2].split()[0]
        assert int(ignored, 16) & 1 << signal.SIGINT - 1
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=300)  # until nobody holds the other end of its output
    assert process.returncode == 143
    assert "Traceback" not in errors
    assert errors.splitlines()[-1].endswith("continue with --resume")
    assert not (tmp_path / "study" / "best.yaml").exists()
    assert tune(tmp_path, "--resume").exit_code == 0  # what is not said is the study's
    is_as_undisturbed(tmp_path, undisturbed)


def test_study_at_home_of_an_oddly_named_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell leaves the ~ of --study=~/… alone, and the trials were written to one folder and
    looked for in another; half a character in the name, and the study could not be read.
    """
    monkeypatch.setenv("HOME", str(tmp_path))
    recipe = tmp_path / "b\x07\udce9.yaml"
    recipe.write_bytes(find_recipe("digits_noniid_b_fednnnn").read_bytes())
    words = ["tune", str(recipe), "--study=~/study", *SMALL[3:], "--grid=beta=0.7", "--rounds=1"]
    done = CliRunner().invoke(main, [*words, "--set=tracking_args.enable_wandb=true"])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("warning: tracking_args.enable_wandb: true: trials do not report")
    assert load_recipe(tmp_path / "study" / "best.yaml").rule_settings["beta"] == 0.7


@pytest.mark.parametrize("higher", [True, False])
def test_search_by_a_recipes_first_metric(tmp_path: Path, higher: bool) -> None:
    module = f"first_metric_{higher}"  # a module of this name stays imported
    (tmp_path / f"{module}.py").write_text(
        "def top(outputs, targets):\n"
        "    return outputs.softmax(1).amax(1).mean().item()\n"
        f"top.higher_is_better = {higher}\n"
    )
    metrics = [f"--set=validation_args.metrics=[{module}:top, f1_macro]", "--allow-code"]
    assert tune(tmp_path, "--grid=beta=0.1,0.7", "--rounds=2", *metrics).exit_code == 0
    study, better = tmp_path / "study", max if higher else min
    rows = pd.read_csv(study / "trials.csv").set_index("beta")
    measured = {}
    for beta, folder in rows["folder"].items():
        lines = (study / folder / "metrics.jsonl").read_text().splitlines()
        measured[beta] = better(json.loads(line)["test_metrics"]["top"] for line in lines)
    assert rows["value"].to_dict() == pytest.approx(measured)
    chosen = yaml.safe_load((study / "best.yaml").read_text())["train_args"]["beta"]
    assert chosen == better(measured, key=lambda beta: measured[beta])


def test_study_refuses_a_model_changed_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of trials that have finished, which are not run again."""
    net = tmp_path / "changing_net.py"
    text = "import torch\ndef make(num_classes):\n    return torch.nn.Sequential(\n"
    text += "        torch.nn.Flatten(), torch.nn.Linear(64, num_classes, bias=True))\n"
    net.write_text(text)
    options = ["--set=model_args.model=changing_net:make", "--allow-code", "--rounds=1"]
    options += ["--grid=beta=0.5,0.7"]
    assert tune(tmp_path, *options).exit_code == 0
    assert tune(tmp_path, *options, "--resume").exit_code == 0
    net.write_text(text.replace("bias=True", "bias=False"))
    monkeypatch.delitem(sys.modules, "changing_net")
    refused = tune(tmp_path, *options, "--resume")
    assert (refused.exit_code, refused.output.count("\n")) == (2, 1)
    assert refused.output.startswith("--resume: model (code)")
