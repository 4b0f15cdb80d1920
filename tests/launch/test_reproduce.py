"""``launch/reproduce.sh``: the paper's runs by one command that can be stopped and repeated."""

import gzip
import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

LAUNCH = Path(__file__).parents[2] / "launch"
TWO = ("digits_noniid_b_fedavg", "digits_noniid_b_fednnnn")
SHORT = ("--", "--set", "train_args.epochs=1", "--set", "device_args.using_gpu=false")

Run = Callable[..., str]
Start = Callable[..., "subprocess.Popen[str]"]


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.open(folder / "metrics.jsonl.gz", "rt")]


@pytest.mark.shellcheck
def test_shellcheck_has_nothing_to_say(shellcheck: str) -> None:
    scripts = [*LAUNCH.rglob("*.sh"), *LAUNCH.rglob("*.sbatch"), LAUNCH.parent / ".ci" / "run"]
    done = subprocess.run([shellcheck, *scripts], capture_output=True, text=True, check=False)
    assert done.stdout == ""
    assert len(scripts) == 6


@pytest.mark.slow
def test_runs_side_by_side_leave_their_records_once(script: Run, tmp_path: Path) -> None:
    said = script("reproduce.sh", "--jobs", "2", "--rounds", "2", "--precision", "bf16",
                  *TWO, *SHORT, "--set", f"data_args.data_cache_dir={tmp_path}")  # fmt: skip
    assert said.count("finished: ") == 2
    for name in TWO:
        folder = tmp_path / "results" / f"{name}-seed0"
        assert {path.name for path in folder.iterdir()} == {
            *("metrics.jsonl.gz", "recipe.yaml", "summary.json")
        }
        assert [line["round"] for line in records(folder)] == [1, 2]
        recipe = yaml.safe_load((folder / "recipe.yaml").read_text())
        assert recipe["train_args"]["precision"] == "bf16"
        assert recipe["data_args"]["data_cache_dir"] == "~/fedml_data"  # no path of this machine
    assert [path.name for path in (tmp_path / "results").glob(".*")] == []

    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "results").rglob("*")}
    said = script("reproduce.sh", "--rounds", "2", *TWO, *SHORT)
    assert said.count("there already: ") == 2
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "results").rglob("*")} == kept


@pytest.mark.slow
def test_a_stopped_command_goes_on_and_more_rounds_extend_a_run(
    start: Start, script: Run, tmp_path: Path
) -> None:
    arguments = ("--seeds", "3", TWO[1])
    metrics = tmp_path / "runs" / f"{TWO[1]}-seed3" / "metrics.jsonl"
    process = start("reproduce.sh", *arguments, "--rounds", "999", *SHORT)
    try:
        while process.poll() is None and not (metrics.exists() and metrics.read_text()):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)  # to the script alone, not to its run
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert not (tmp_path / "results" / f"{TWO[1]}-seed3").exists()

    done = metrics.read_text().splitlines()
    for more in (1, 2):
        script("reproduce.sh", *arguments, "--rounds", str(len(done) + more), *SHORT)
        kept = records(tmp_path / "results" / f"{TWO[1]}-seed3")
        assert kept[: len(done)] == [json.loads(line) for line in done]
        assert len(kept) == len(done) + more


def test_a_run_that_fails_does_not_stop_the_others(script: Run, tmp_path: Path) -> None:
    said = script("reproduce.sh", *TWO, *SHORT, "--set", "train_args.momentum=x", status=1)
    assert [said.count(f"failed: {name}-seed0") for name in TWO] == [1, 1]
    assert "train_args.momentum" in said
    assert list((tmp_path / "results").iterdir()) == []


def test_the_papers_order(script: Run, tmp_path: Path, environment: dict[str, str]) -> None:
    stub = tmp_path / "bin" / "fednnnn"
    stub.parent.mkdir()
    stub.write_text("#!/bin/sh\nexit 1\n")
    stub.chmod(0o755)
    environment["PATH"] = f"{stub.parent}:{environment['PATH']}"
    said = script("reproduce.sh", "--seeds", "0,1", status=1)
    made = [line.removeprefix("running: ") for line in said.splitlines() if "running: " in line]
    assert len(made) == 2 * 40
    assert made[:5] == [
        f"mnist_noniid_b_{method}-seed0"
        for method in ("fedavg", "fedprox", "normnorm", "momentum", "fednnnn")
    ]
    groups = [name.rsplit("_", 2)[0] for name in made[:40:10]]
    assert groups == ["mnist_noniid", "cifar10_noniid", "mnist_iid", "cifar10_iid"]
    assert made[40:] == [name.replace("seed0", "seed1") for name in made[:40]]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--jobs", "0"), "--jobs 0"),
        (("--rounds", "many"), "--rounds many"),
        (("--seeds", "1 2"), "--seeds 1 2"),
        (("--sed", "1"), "--sed"),
        (("--jobs",), "--jobs"),
        (("nothing_like_it",), "nothing_like_it"),
    ],
)
def test_a_mistake_is_named_and_nothing_runs(
    script: Run, tmp_path: Path, arguments: tuple[str, ...], named: str
) -> None:
    assert named in script("reproduce.sh", *arguments, status=2)
    assert list(tmp_path.iterdir()) == []
