"""``fednnnn run``: what a person sees, the exit status, and that mistakes write nothing."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fednnnn_plugin import __version__
from fednnnn_plugin.cli import main
from fednnnn_plugin.engine import start
from fednnnn_plugin.errors import RunError

RECIPE = "digits_noniid_b_fednnnn"
#: Small and fast: 5 of 20 clients, one epoch.
QUICK = {
    "client_num_per_round": 5,
    "epochs": 1,
    "comm_round": 3,
    "checkpoint_every": 1,
    "device_args.using_gpu": False,
}
LINE = re.compile(r"round (\d+)/3  accuracy 0\.\d{4}  N/E [01]\.\d{3}  \d+\.\d\d s  0:\d\d left")

Invoke = Callable[..., Result]


def options(settings: dict[str, Any]) -> list[str]:
    """``--set`` options; a name without a dot is one of ``train_args``."""
    keys = {key if "." in key else f"train_args.{key}": value for key, value in settings.items()}
    return [part for key, value in keys.items() for part in ("--set", f"{key}={json.dumps(value)}")]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def invoke(here: Path) -> Invoke:
    def run(*arguments: str, recipe: str = RECIPE, **settings: Any) -> Result:
        return CliRunner().invoke(
            main, ["run", recipe, *arguments, *options(QUICK | settings)], catch_exceptions=False
        )

    return run


def refused(result: Result) -> str:
    """Return the one line that a mistake is said in."""
    assert (result.exit_code, result.stdout) == (2, "")
    [line] = result.stderr.splitlines()
    return line


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_shows_a_line_a_round_and_how_it_ended(invoke: Invoke, here: Path) -> None:
    result = invoke()
    assert result.exit_code == 0
    *rounds, closing = result.stdout.splitlines()
    assert [int(LINE.fullmatch(line)[1]) for line in rounds] == [1, 2, 3]
    assert re.fullmatch(
        rf"runs/{RECIPE}-seed0: accuracy 0\.\d+ after 3 rounds, best 0\.\d+ in round \d", closing
    )
    assert result.stderr == ""
    assert [path.name for path in (here / "runs").iterdir()] == [f"{RECIPE}-seed0"]


def test_missing_gpus_are_said_once_and_stand_in_the_log(
    invoke: Invoke, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fednnnn_plugin.engine.devices.visible_gpus", lambda: 0)
    result = invoke("--output", "out", comm_round=1, **{"device_args.using_gpu": True})
    warning = "device_args.using_gpu: no GPU is visible: running on the CPU"
    assert result.stderr.splitlines() == [f"warning: {warning}"]
    log = (here / "out" / "fedml.log").read_text()
    assert log.count(warning) == 1
    for said in (f"fednnnn-plugin {__version__}", "device: cpu", "digits", "20 clients", "round 1"):
        assert said in log


def test_a_finished_run_is_resumed_by_doing_nothing(invoke: Invoke, here: Path) -> None:
    invoke("--output", "out")
    before = content(here)
    # Its data is not even looked for.
    result = invoke("--output", "out", "--resume")
    assert (result.exit_code, result.stdout) == (0, "out: the run is finished already\n")
    assert content(here) == before
    longer = invoke("--output", "out", "--resume", comm_round=4)
    assert longer.stdout.startswith("round 4/4")


@pytest.mark.parametrize(
    ("recipe", "settings", "line"),
    [
        (RECIPE, {"beta": "big"}, "--set train_args.beta: 'big': must be a finite number greater"),
        (RECIPE, {"client_num_in_total": 2000}, "train_args.client_num_in_total: 2000: "),
        (RECIPE, {"model_args.model": "nnnn_mnist"}, "model_args.model: nnnn_mnist: does not take"),
        ("nowhere/x.yaml", {}, "nowhere/x.yaml: no such file"),
        (
            "mnist_noniid_b_fednnnn",
            {"data_args.data_cache_dir": "none", "data_args.download": False},
            "none: no MNIST here: ",
        ),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(
    invoke: Invoke, here: Path, recipe: str, settings: dict[str, Any], line: str
) -> None:
    assert refused(invoke(recipe=recipe, **settings)).startswith(line)
    assert list(here.iterdir()) == []


def test_a_folder_that_does_not_fit_is_refused_and_left_alone(invoke: Invoke, here: Path) -> None:
    assert refused(invoke("--output", ".")).startswith("--output: ")
    assert refused(invoke("--output", "typo", "--resume")).startswith("--resume: typo: ")
    assert not any(here.iterdir())
    invoke("--output", "out")
    before = content(here)
    assert "--overwrite" in refused(invoke("--output", "out"))
    assert "train_args.comm_round" in refused(invoke("--output", "out", "--resume", beta=0.9))
    assert "--resume, --overwrite" in refused(invoke("--resume", "--overwrite"))
    assert content(here) == before
    assert invoke("--output", "out", "--overwrite").exit_code == 0


def test_a_run_that_cannot_go_on_ends_with_status_1_and_its_line(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(*_: object, **__: object) -> None:
        raise RunError("round 3: no client update to average: all 2 were rejected")

    monkeypatch.setattr(start, "run_recipe", end)
    result = invoke()
    assert result.exit_code == 1
    assert result.stderr == "round 3: no client update to average: all 2 were rejected\n"


def test_tensorboard_on_request(invoke: Invoke, here: Path) -> None:
    assert invoke("--output", "followed", "--tensorboard", comm_round=1).exit_code == 0
    assert list((here / "followed" / "tensorboard").glob("events.*"))


def test_weights_and_biases_without_a_key_is_one_line(
    invoke: Invoke, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/nowhere")
    for name in ("WANDB_API_KEY", "WANDB_MODE", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    line = refused(invoke(**{"tracking_args.enable_wandb": True}))
    assert line.startswith("tracking_args.enable_wandb: true: ")
    assert list(here.iterdir()) == []


def test_mpi_needs_mpi4py(invoke: Invoke, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under ``mpirun``, two processes that each ran alone would write into one folder."""
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    assert refused(invoke("--backend", "MPI")).endswith("install fednnnn-plugin[mpi]")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    assert refused(invoke()).endswith("install fednnnn-plugin[mpi]")
    assert refused(invoke("--backend", "sp")).startswith("--backend sp: 2 processes")
    assert list(here.iterdir()) == []


@pytest.mark.slow
def test_a_launcher_that_mpi_does_not_know_is_said_by_every_process(here: Path) -> None:
    """As of ``srun`` without PMI."""
    ended = subprocess.run(
        [Path(sys.executable).with_name("fednnnn"), "run", RECIPE, "--output", "out"],
        env=os.environ | {"SLURM_STEP_NUM_TASKS": "3", "SLURM_PROCID": "1"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2, ended
    [line] = ended.stderr.splitlines()
    assert "3 processes were launched, but MPI sees 1: " in line
    assert list(here.iterdir()) == []
