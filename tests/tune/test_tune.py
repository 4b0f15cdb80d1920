"""``fednnnn tune`` on digits: killed, resumed, shared, pruned, refused."""

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

from fednnnn_plugin.recipe import load_recipe

FEDNNNN = Path(sys.executable).with_name("fednnnn")
RECIPE = "digits_noniid_b_fednnnn"
# Small, so that 16 trials take seconds: six clients, two rounds of an epoch.
SMALL = [
    *("--set", "train_args.client_num_in_total=10"),
    *("--set", "train_args.client_num_per_round=6"),
    *("--set", "train_args.epochs=1"),
    *("--set", "train_args.checkpoint_every=1"),
]
GRID = ["--grid", "beta=0.5:1.4:0.3", "--grid", "gamma=0.6:0.9:0.1"]


def tune(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [FEDNNNN, "tune", RECIPE, *SMALL, "--study", "study", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "study" / "trials.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def ended(folder: Path) -> Counter[str]:
    """How often Optuna's journal sets a result for each point."""
    journal = folder / "study" / "journal.log"
    entries = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    results = [e["user_attr"]["result"] for e in entries if "result" in e.get("user_attr", {})]
    return Counter(result["point"] for result in results)


def members(group: int) -> list[int]:
    """The processes of a group that still run."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, of_group, *_ = status.read_text(encoding="utf-8").rpartition(")")[2].split()
            if int(of_group) == group and state != "Z":
                found.append(int(status.parent.name))
    return found


def checkpoints(folder: Path) -> dict[str, float]:
    """When each trial's model was last written."""
    models = (folder / "study" / "trials").rglob("model.safetensors")
    return {str(model): model.stat().st_mtime_ns for model in models}


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_killed_half_way_and_resumed_without_repeating_a_finished_trial(
    tmp_path: Path, jobs: str
) -> None:
    options = [*GRID, "--rounds", "2", "--jobs", jobs]
    with subprocess.Popen(
        [FEDNNNN, "tune", RECIPE, *SMALL, "--study", "study", *options],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("[8/16]"):
                os.killpg(process.pid, signal.SIGKILL)
                break
    before = ended(tmp_path)
    models = checkpoints(tmp_path)
    assert 8 <= len(before) < 16

    resumed = tune(tmp_path, *options, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    rows = table(tmp_path)
    assert len(rows) == 16
    assert {(row["beta"], row["gamma"]) for row in rows} == {
        (beta, gamma)
        for beta in ("0.5", "0.8", "1.1", "1.4")
        for gamma in ["0.6", "0.7", "0.8", "0.9"]
    }
    assert {row["state"] for row in rows} == {"finished"}
    for point in before:  # not run again: their models are the ones from before the kill
        model = str(tmp_path / "study" / "trials" / "FedNNNN" / point / "model.safetensors")
        assert checkpoints(tmp_path)[model] == models[model]
        assert f"{point.replace('=', ' ').replace(',', ', ')}  " not in resumed.stdout
    assert resumed.stdout.count("best accuracy") == 16 - len(before)

    # The outcome is that of a search that nobody interrupted.
    best = max(rows, key=lambda row: float(row["value"]))
    recipe = load_recipe(tmp_path / "study" / "best.yaml")
    assert recipe.train_args.beta == float(best["beta"])
    assert recipe.train_args.gamma == float(best["gamma"])
    assert recipe.data_args.validation_fraction == 0.0
    text = (tmp_path / "study" / "best.yaml").read_text(encoding="utf-8")
    assert "# Early stopping of hopeless trials: off." in text
    assert list((tmp_path / "study" / "figures").glob("**/*.svg"))

    again = tune(tmp_path, "--resume")  # what is not said is the study's
    assert again.returncode == 0, again.stderr
    assert ended(tmp_path) == Counter(dict.fromkeys(ended(tmp_path), 1))
    run = [FEDNNNN, "run", "study/best.yaml", "--set", "train_args.comm_round=1"]
    ran = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.slow
def test_the_learning_rate_first_and_then_the_method_with_it(tmp_path: Path) -> None:
    """Steps 2 and 3: of two values that are far apart the second wins, as 1e-6 does not learn."""
    done = tune(
        tmp_path,
        *("--grid", "learning_rate=1e-6,0.1", "--grid", "gamma=0.5,0.8"),
        *("--rounds", "6", "--prune", "--metric", "final_accuracy", "--validation", "0.3"),
    )
    assert done.returncode == 0, done.stderr
    rows = table(tmp_path)
    assert [row["method"] for row in rows] == ["PaperFedAvg"] * 2 + ["FedNNNN"] * 2
    recipe = load_recipe(tmp_path / "study" / "best.yaml")
    assert recipe.train_args.learning_rate == 0.1
    for row in rows[2:]:
        tried = yaml.safe_load(
            (tmp_path / "study" / row["folder"] / "recipe.yaml").read_text(encoding="utf-8")
        )
        assert tried["train_args"]["learning_rate"] == 0.1
        assert tried["data_args"]["validation_fraction"] == 0.3
        assert float(row["value"]) == float(row["final_accuracy"])
    text = (tmp_path / "study" / "best.yaml").read_text(encoding="utf-8")
    assert "# Early stopping of hopeless trials: on" in text


@pytest.mark.slow
def test_a_point_that_diverges_is_a_failure_and_not_the_end(tmp_path: Path) -> None:
    done = tune(tmp_path, "--grid", "beta=0.7,1e37", "--rounds", "2")
    assert done.returncode == 0, done.stderr
    assert [row["state"] for row in table(tmp_path)] == ["finished", "failed"]
    assert "failed round" in done.stdout
    count = ended(tmp_path)
    assert tune(tmp_path, "--resume").returncode == 0
    assert ended(tmp_path) == count  # a failure is a result too


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_all_processes_in_a_line(tmp_path: Path, number: int, status: int) -> None:
    with subprocess.Popen(
        [FEDNNNN, "tune", RECIPE, "--study", "study", *GRID, "--jobs", "2"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        while not list((tmp_path / "study").rglob("metrics.jsonl")):
            time.sleep(0.1)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == status
    assert errors.splitlines()[-1].endswith("go on with --resume")
    assert "Traceback" not in errors
    deadline = time.monotonic() + 30
    while members(process.pid):  # no helper is left behind
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
def test_what_is_asked_for_must_be_the_study(tmp_path: Path) -> None:
    assert tune(tmp_path, "--grid", "beta=0.5", "--rounds", "1").returncode == 0
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for options, line in [
        ([], "--study: study: it already holds a study; go on with --resume"),
        (["--resume", "--set", "train_args.batch_size=5"], "--resume: train_args.batch_size: 5:"),
        (["--resume", "--grid", "beta=0.6"], "--resume: grids: "),
        (["--resume", "--rounds", "2"], "--resume: rounds: 2: the study in study has 1"),
    ]:
        refused = tune(tmp_path, *options)
        assert refused.returncode == 2
        assert refused.stderr.startswith(line)
        assert len(refused.stderr.splitlines()) == 1
    assert files == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--grid", "beta="], "--grid beta: ''"),
        (["--grid", "beta=2:1:0.1"], "--grid beta: '2:1:0.1': STEP must be above 0"),
        (["--grid", "beta=0,1"], "--grid beta: 0.0: must be"),
        (["--grid", "eta=1"], "--grid eta: FedNNNN has no such key to search"),
        (["--rounds", "0"], "--rounds: 0: must be a whole number"),
        (["--validation", "0"], "--validation: 0.0: must be a number above 0"),
        (["--metric", "loss"], "--metric: 'loss': must be one of"),
        (["--settings", "nowhere.yaml"], "nowhere.yaml: no such file"),
        (["--jobs", "0"], "--jobs: 0: must be at least 1"),
        (["--study", "a-file"], "--study: a-file: "),
        (["--study", "a-folder"], "--study: a-folder: not empty, and not a study"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    tmp_path: Path, options: list[str], line: str
) -> None:
    (tmp_path / "a-file").touch()
    (tmp_path / "a-folder").mkdir()
    (tmp_path / "a-folder" / "thesis.tex").touch()
    refused = subprocess.run(
        [FEDNNNN, "tune", RECIPE, *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 2
    assert refused.stderr.startswith(line), refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-file", "a-folder"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("study.yaml", "steps: 1\n"),
        ("study.yaml", "{"),
        ("journal.log", "{}\n{}\n"),
        ("journal.log", "nonsense\nnonsense\n"),
        ("base.yaml", "train_args: 3\n"),
    ],
)
def test_a_damaged_study_is_one_line(tmp_path: Path, file: str, content: str) -> None:
    assert tune(tmp_path, "--grid", "beta=0.5", "--rounds", "1").returncode == 0
    (tmp_path / "study" / file).write_text(content, encoding="utf-8")
    refused = tune(tmp_path, "--resume")
    assert refused.returncode == 2
    assert "Traceback" not in refused.stderr
    assert file in refused.stderr.splitlines()[0]
