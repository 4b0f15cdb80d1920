"""``fednnnn tune`` on digits: interrupted, killed, resumed, shared, pruned."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from fednnnn_plugin.recipe import dump_recipe, load_recipe

FEDNNNN = Path(sys.executable).with_name("fednnnn")
RECIPE = "digits_noniid_b_fednnnn"
# Small, so that a trial takes seconds: six clients, an epoch.
SMALL = [
    *("--set", "train_args.client_num_in_total=10"),
    *("--set", "train_args.client_num_per_round=6"),
    *("--set", "train_args.epochs=1"),
    *("--set", "train_args.checkpoint_every=1"),
    *("--set", "device_args.using_gpu=false"),
]
THREE = ["--grid", "train_args.beta=0.5,0.7,0.9", "--rounds", "8"]
NAMES = ["beta=0.5", "beta=0.7", "beta=0.9"]

pytestmark = pytest.mark.slow


def start(folder: Path, *options: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [FEDNNNN, "tune", RECIPE, *SMALL, "--study", "study", *options],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def tune(folder: Path, *options: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    with start(folder, *options) as process:
        out, errors = process.communicate(timeout=300)
    assert process.returncode == status, errors
    return subprocess.CompletedProcess(process.args, process.returncode, out, errors)


def wait_for_round(folder: Path, name: str, process: "subprocess.Popen[str]") -> None:
    """Return when a trial has finished its first round, well before its last."""
    metrics = folder / "study" / "trials" / "FedNNNN" / name / "metrics.jsonl"
    while not (metrics.exists() and b"\n" in metrics.read_bytes()):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "study" / "trials.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def recorded(folder: Path) -> Counter[str]:
    """How often Optuna's journal has a trial of each point."""
    lines = (folder / "study" / "journal.log").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line).get("user_attrs", {}).get("row") for line in lines]
    return Counter(Path(row["folder"]).name for row in rows if row)


def models(folder: Path) -> dict[str, int]:
    """When each trial's model was last written."""
    found = (folder / "study" / "trials").rglob("model.safetensors")
    return {model.parent.name: model.stat().st_mtime_ns for model in found}


def rounds(folder: Path, name: str) -> list[tuple[int, float]]:
    metrics = folder / "study" / "trials" / "FedNNNN" / name / "metrics.jsonl"
    records = map(json.loads, metrics.read_text(encoding="utf-8").splitlines())
    return [(record["round"], record["test_acc"]) for record in records]


def members(group: int) -> list[int]:
    """The processes of a group that still run."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, of_group, *_ = status.read_text(encoding="utf-8").rpartition(")")[2].split()
            if int(of_group) == group and state != "Z":
                found.append(int(status.parent.name))
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    tune(folder, *THREE)
    return folder


def is_as_undisturbed(folder: Path, undisturbed: Path) -> None:
    """Every point has the result that it has in a search which nothing cut short."""
    assert table(folder) == table(undisturbed)
    for name in NAMES:
        assert rounds(folder, name) == rounds(undisturbed, name)
    text = (folder / "study" / "best.yaml").read_text(encoding="utf-8")
    assert text == (undisturbed / "study" / "best.yaml").read_text(encoding="utf-8")
    assert "3 of 3 points have a result: 3 finished" in text
    assert recorded(folder) == Counter(NAMES)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_the_point_that_was_running_is_gone_on_with(
    tmp_path: Path, undisturbed: Path, number: int, status: int
) -> None:
    with start(tmp_path, *THREE) as process:
        wait_for_round(tmp_path, "beta=0.7", process)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == status
    assert "Traceback" not in errors
    if status != -9:
        assert errors.splitlines()[-1].endswith("go on with --resume")
    assert not (tmp_path / "study" / "best.yaml").exists()
    assert recorded(tmp_path) == Counter(["beta=0.5"])
    first = models(tmp_path)["beta=0.5"]

    resumed = tune(tmp_path, "--resume")  # what is not said is the study's
    assert "beta 0.5  " not in resumed.stdout
    assert models(tmp_path)["beta=0.5"] == first
    is_as_undisturbed(tmp_path, undisturbed)


def test_of_two_processes_the_other_takes_the_point_over(tmp_path: Path, undisturbed: Path) -> None:
    with start(tmp_path, *THREE) as first:
        wait_for_round(tmp_path, "beta=0.5", first)
        with start(tmp_path, *THREE, "--resume") as second:
            wait_for_round(tmp_path, "beta=0.7", second)
            first.send_signal(signal.SIGINT)
            _, errors = second.communicate(timeout=120)
        first.communicate(timeout=60)
    assert second.returncode == 0, errors
    is_as_undisturbed(tmp_path, undisturbed)


def test_with_helpers_killed_half_way_and_resumed(tmp_path: Path, undisturbed: Path) -> None:
    with start(tmp_path, *THREE, "--jobs", "2") as process:
        wait_for_round(tmp_path, "beta=0.7", process)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
    tune(tmp_path, "--resume", "--jobs", "2")
    is_as_undisturbed(tmp_path, undisturbed)


def test_a_signal_ends_the_helpers_too(tmp_path: Path) -> None:
    with start(tmp_path, *THREE, "--jobs", "2") as process:
        wait_for_round(tmp_path, "beta=0.7", process)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "Traceback" not in errors
    deadline = time.monotonic() + 30
    while members(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_the_outcome_is_a_recipe_that_runs(undisturbed: Path) -> None:
    best = max(table(undisturbed), key=lambda row: float(row["value"]))
    path = undisturbed / "study" / "best.yaml"
    found = yaml.safe_load(dump_recipe(load_recipe(path)))
    assert found["train_args"]["beta"] == float(best["beta"])
    assert found["data_args"]["validation_fraction"] == 0.0
    assert list((undisturbed / "study" / "figures").glob("**/*.svg"))
    run = [FEDNNNN, "run", path, "--set", "train_args.comm_round=1", "--output", "run"]
    ran = subprocess.run(run, cwd=undisturbed, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_both_steps_and_a_point_that_diverges(tmp_path: Path) -> None:
    """Steps 2 and 3: of two rates the second wins, as 1e-6 does not learn; β 1e37 overflows."""
    done = tune(
        tmp_path,
        *("--grid", "learning_rate=1e-6,0.1", "--grid", "beta=0.7,1e37", "--rounds", "6"),
        *("--prune", "--metric", "final_accuracy", "--validation", "0.3"),
    )
    rows = table(tmp_path)
    assert [row["method"] for row in rows] == ["PaperFedAvg"] * 2 + ["FedNNNN"] * 2
    assert [row["state"] for row in rows] == ["finished"] * 3 + ["failed"]
    assert "beta 1e+37  failed round" in done.stdout
    found = yaml.safe_load((tmp_path / "study" / "best.yaml").read_text(encoding="utf-8"))
    assert found["train_args"]["learning_rate"] == 0.1
    for row in rows[2:]:
        tried = yaml.safe_load((tmp_path / "study" / row["folder"] / "recipe.yaml").read_text())
        assert tried["train_args"]["learning_rate"] == 0.1
        assert tried["data_args"]["validation_fraction"] == 0.3
    text = (tmp_path / "study" / "best.yaml").read_text(encoding="utf-8")
    assert "# Early stopping of hopeless trials: on" in text
    assert "2 of 2 points have a result: 1 finished, 1 failed" in text
