"""``fednnnn run``: what a person sees, the exit status, and that mistakes write nothing."""

import json
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fednnnn_plugin import __version__
from fednnnn_plugin.cli import main
from fednnnn_plugin.engine import launch
from fednnnn_plugin.engine.folder import RunFolder
from fednnnn_plugin.errors import RunError

RECIPE = "digits_noniid_b_fednnnn"
#: Small and fast: 5 of 20 clients, one epoch.
QUICK = {"client_num_per_round": 5, "epochs": 1, "comm_round": 3, "checkpoint_every": 1}
LINE = re.compile(r"round (\d+)/3  accuracy 0\.\d{4}  N/E [01]\.\d{3}  \d+\.\d\d s  0:\d\d left")

Invoke = Callable[..., Result]


def options(settings: dict[str, Any]) -> list[str]:
    """``--set`` options; a name without a dot is one of ``train_args``."""
    keys = {key if "." in key else f"train_args.{key}": value for key, value in settings.items()}
    return [part for key, value in keys.items() for part in ("--set", f"{key}={json.dumps(value)}")]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def invoke(here: Path) -> Invoke:
    def run(*arguments: str, recipe: str = RECIPE, **settings: Any) -> Result:
        return CliRunner().invoke(
            main, ["run", recipe, *arguments, *options(QUICK | settings)], catch_exceptions=False
        )

    return run


def test_a_run_shows_a_line_a_round_and_how_it_ended(invoke: Invoke, here: Path) -> None:
    result = invoke(**{"device_args.using_gpu": False})
    assert result.exit_code == 0
    *rounds, closing = result.stdout.splitlines()
    assert [int(LINE.fullmatch(line)[1]) for line in rounds] == [1, 2, 3]
    assert re.fullmatch(
        rf"runs/{RECIPE}-seed0: accuracy 0\.\d+ after 3 rounds, best 0\.\d+ in round \d", closing
    )
    assert result.stderr == ""
    assert [path.name for path in (here / "runs").iterdir()] == [f"{RECIPE}-seed0"]


def test_missing_gpus_are_said_once(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fednnnn_plugin.engine.devices.visible_gpus", lambda: 0)
    result = invoke()
    assert result.stderr.splitlines() == [
        "warning: device_args.using_gpu: no GPU is visible: running on the CPU"
    ]


def test_a_finished_run_is_resumed_by_doing_nothing(invoke: Invoke, here: Path) -> None:
    invoke("--output", "out")
    before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    result = invoke("--output", "out", "--resume")
    assert (result.exit_code, result.stdout) == (0, "out: the run is finished already\n")
    assert {path: path.read_bytes() for path in here.rglob("*") if path.is_file()} == before
    longer = invoke("--output", "out", "--resume", comm_round=4)
    assert longer.exit_code == 0
    assert longer.stdout.startswith("round 4/4")
    assert len((here / "out" / "metrics.jsonl").read_text().splitlines()) == 4


SECTIONS = "common_args: {training_type: simulation}\ndata_args: {dataset: digits}\n"


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"betta": 1}, r"--set train_args\.betta: unknown key; did you mean train_args\.beta\?"),
        ({"trian_args.beta": 1}, r"--set trian_args.*: unknown section; .* train_args"),
        (
            {"beta": "big"},
            r"--set train_args\.beta: 'big': must be a finite number greater than 0.*",
        ),
        ({"beta": 0}, r"--set train_args\.beta: 0: must be a finite number greater than 0.*"),
        (
            {"gamma": 1},
            r"--set train_args\.gamma: 1: must be a number of at least 0 and less than.*",
        ),
        ({"gamma": -0.1}, r"--set train_args\.gamma: -0\.1: must be a number of at least 0 .*"),
        ({"client_num_per_round": 21}, r".*client_num_per_round: 21: must be at most.* 20"),
        ({"client_num_per_round": 0}, r".*client_num_per_round: 0: must be a whole number.*"),
        ({"batch_size": 0}, r".*batch_size: 0: must be a whole number of at least 1.*"),
        ({"epochs": 0.5}, r".*epochs: 0\.5: must be a whole number of at least 1"),
        (
            {"federated_optimizer": "FedAvg"},
            r".*'FedAvg': must be one of .*did you mean PaperFedAvg\?",
        ),
        ({"federated_optimizer": "NormNorm"}, r".*gamma.*NormNorm does not use it.*"),
        ({"client_num_in_total": 2000}, r".*2000.*"),
    ],
)
def test_a_bad_setting_is_one_line_and_nothing_is_written(
    invoke: Invoke, here: Path, settings: dict[str, Any], line: str
) -> None:
    result = invoke(**settings)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert re.fullmatch(line, result.stderr.rstrip("\n")), result.stderr
    assert result.stdout == ""
    assert list(here.iterdir()) == []


def test_every_mistake_has_its_line(invoke: Invoke) -> None:
    result = invoke(beta=-1, epochs=0, **{"data_args.dataset": "svhn"})
    assert result.exit_code == 2
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == [
        "--set data_args.dataset",
        "--set train_args.beta",
        "--set train_args.epochs",
    ]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (SECTIONS, r"mine\.yaml: .*: missing section"),
        ("train_args: {beta: [1", r"mine\.yaml: line 1: .*"),
        ("- a\n- b\n", r"mine\.yaml: a list; a recipe is a mapping.*"),
        ("", r"mine\.yaml: empty; a recipe is a mapping.*"),
        ("\0\1\2", r"mine\.yaml: .*not YAML.*"),
        ("a: !!python/object/apply:os.system [touch x]", r"mine\.yaml: .*"),
    ],
)
def test_a_file_that_is_no_recipe(here: Path, content: str, line: str) -> None:
    (here / "mine.yaml").write_text(content)
    result = CliRunner().invoke(main, ["run", "mine.yaml"])
    assert result.exit_code == 2
    assert all(re.fullmatch(line, shown) for shown in result.stderr.splitlines()), result.stderr
    assert result.stderr
    assert [path.name for path in here.iterdir()] == ["mine.yaml"]


@pytest.mark.parametrize("name", ["digits_noniid_b_fednnn", "nowhere/x.yaml", "."])
def test_a_recipe_that_is_not_there(invoke: Invoke, here: Path, name: str) -> None:
    result = invoke(recipe=name)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "said"), [("missing", "download"), ("empty", "download"), ("file", "not a folder")]
)
@pytest.mark.parametrize("recipe", ["mnist_noniid_b_fednnnn", "cifar10_iid_b_fedavg"])
def test_data_that_is_not_there_is_one_line_that_says_how_to_get_it(
    invoke: Invoke, here: Path, tmp_path: Path, recipe: str, kind: str, said: str
) -> None:
    folder = tmp_path / "data"
    if kind == "file":
        folder.write_text("")
    elif kind == "empty":
        folder.mkdir()
    result = invoke(
        recipe=recipe,
        **{"data_args.data_cache_dir": str(folder), "data_args.download": False},
    )
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert str(folder) in result.stderr
    assert said in result.stderr
    assert list(here.iterdir()) == []


def test_the_current_folder_is_no_run_folder(invoke: Invoke, here: Path) -> None:
    result = invoke("--output", ".")
    assert result.exit_code == 2
    assert result.stderr == "--output: must name a folder for the run, not the current one\n"
    assert not any(here.iterdir())


def test_tensorboard_on_request(invoke: Invoke, here: Path) -> None:
    assert invoke("--output", "plain").exit_code == 0
    assert not (here / "plain" / "tensorboard").exists()
    assert invoke("--output", "followed", "--tensorboard").exit_code == 0
    assert list((here / "followed" / "tensorboard").glob("events.*"))


def test_a_folder_that_holds_a_run_is_left_alone(invoke: Invoke, here: Path) -> None:
    invoke("--output", "out")
    before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    result = invoke("--output", "out")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == (
        "--output: out: it already holds a run; go on with --resume, replace it with --overwrite, "
        "or choose another folder"
    )
    changed = invoke("--output", "out", "--resume", beta=0.9)
    assert changed.exit_code == 2
    assert "only train_args.comm_round may differ" in changed.stderr.splitlines()[-1]
    both = invoke("--output", "out", "--resume", "--overwrite")
    assert (both.exit_code, both.stderr) == (2, "--resume, --overwrite: give one of them\n")
    assert {path: path.read_bytes() for path in here.rglob("*") if path.is_file()} == before
    assert invoke("--output", "out", "--overwrite").exit_code == 0


def test_a_run_that_cannot_go_on_ends_with_status_1_and_its_line(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(*_: object, **__: object) -> None:
        raise RunError("round 3: no client update to average: all 2 were rejected")

    monkeypatch.setattr(launch, "run_recipe", end)
    result = invoke()
    assert result.exit_code == 1
    assert result.stderr == "round 3: no client update to average: all 2 were rejected\n"


@pytest.mark.parametrize(
    ("largest", "name"), [(600, "recipe.yaml"), (20_000, "model.safetensors"), (30_000, "round-0")]
)
def test_a_full_disk_ends_with_status_1_and_loses_no_checkpoint(
    invoke: Invoke, here: Path, largest: int, name: str
) -> None:
    """The kernel's limit on a file's size stands for the disk's end."""
    settings = {"device_args.using_gpu": False}
    invoke("--output", "out", **settings, comm_round=2)
    before = {path: path.read_bytes() for path in here.rglob("*.safetensors")}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, limits[1]))
    try:
        result = invoke("--output", "out", "--resume", **settings)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert result.exit_code == 1
    assert re.fullmatch(rf"out/.*{name}.*: File too large\n", result.stderr), result.stderr
    kept = {path: path.read_bytes() for path in here.rglob("*.safetensors")}
    assert kept.keys() == before.keys()
    assert all(kept[path] == before[path] for path in before if path.parent.name == "checkpoint")

    assert invoke("--output", "out", "--resume", **settings).exit_code == 0
    invoke("--output", "whole", **settings)
    models = [(here / folder / "model.safetensors").read_bytes() for folder in ("out", "whole")]
    assert models[0] == models[1]


def test_mpi_needs_mpi4py(invoke: Invoke, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under ``mpirun``, two processes that each ran alone would write into one folder."""
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    for arguments in (("--backend", "MPI"), ()):
        if not arguments:
            monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
        result = invoke(*arguments)
        assert result.exit_code == 2
        assert re.fullmatch(
            r"--backend MPI: mpi4py does not import \(.*\): install fednnnn-plugin\[mpi\]\n",
            result.stderr,
        )
    result = invoke("--backend", "sp")
    assert result.exit_code == 2
    assert result.stderr == ("--backend sp: 2 processes were launched: start one, or use MPI\n")
    assert list(here.iterdir()) == []


def test_the_version() -> None:
    assert __version__ in CliRunner().invoke(main, ["--version"]).stdout


def wait_for_round(process: subprocess.Popen[str], number: int) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(f"round {number}/"):
            return
    pytest.fail(f"ended before round {number}")


@pytest.mark.parametrize(
    ("sent", "status", "message"),
    [
        (signal.SIGINT, 130, "interrupted; go on with --resume\n"),
        (signal.SIGTERM, 143, "terminated; go on with --resume\n"),
    ],
)
def test_a_signal_ends_a_run_at_once_and_loses_nothing(
    invoke: Invoke, here: Path, sent: signal.Signals, status: int, message: str
) -> None:
    settings = {"comm_round": 200, "checkpoint_every": 500, "device_args.using_gpu": False}
    command = Path(sys.executable).with_name("fednnnn")
    process = subprocess.Popen(
        [command, "run", RECIPE, "--output", "out", *options(QUICK | settings)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for_round(process, 3)
        busy = invoke("--output", "out", "--resume", **settings)
        assert busy.exit_code == 2
        assert busy.stderr == "--output: out: another run is writing to it\n"
        began = time.monotonic()
        process.send_signal(sent)
        _, stderr = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == status
    assert time.monotonic() - began < 5
    assert stderr == message
    [checkpoint] = (here / "out" / "checkpoint").iterdir()
    done = int(checkpoint.name.split("-")[1])
    assert len((here / "out" / "metrics.jsonl").read_text().splitlines()) == done >= 3

    settings["comm_round"] = done + 2
    assert invoke("--output", "out", "--resume", **settings).stdout.startswith(f"round {done + 1}/")
    invoke("--output", "whole", **settings)
    models = [(here / name / "model.safetensors").read_bytes() for name in ("out", "whole")]
    assert models[0] == models[1]


def test_a_lock_of_a_dead_process_is_no_lock(invoke: Invoke, here: Path) -> None:
    folder = here / "out"
    code = (
        "import os, sys; from pathlib import Path\n"
        "from fednnnn_plugin.engine.folder import RunFolder\n"
        "with RunFolder(Path('out')).locked('new'): os.kill(os.getpid(), 9)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert (folder / ".lock").exists()
    with RunFolder(folder).locked("new"):
        pass
