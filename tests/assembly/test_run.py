"""``fp.run`` and ``fp.load_model``: a run and its model, from Python; the commit that made it."""

import io
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch import Tensor, nn

import fednnnn_plugin as fp
from fednnnn_plugin.data.sets.digits import load_digits
from fednnnn_plugin.followers.trackers import TensorBoard
from fednnnn_plugin.models import create_model
from fednnnn_plugin.run_folder.provenance import commit

from ..tiny import DATA, NET, QUICK, TEST, Doing, cell, follower, quick_run, read_records

RECIPE = "digits_noniid_b_fednnnn"


def test_run_and_its_metrics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[object] = []
    noting = follower(
        begin=lambda folder, finished: seen.append((folder.name, finished)),
        client_done=lambda *of_round: seen.append(of_round),
        round_done=lambda _: seen.append("round"),
        end=lambda: seen.append("end"),
    )
    run = quick_run(tmp_path / "run", using_mlops=True, followers=[noting])
    assert (run.folder, run.was_finished) == (tmp_path / "run", False)
    metrics = fp.read_runs(run.folder)
    assert metrics["round"].tolist() == [1, 2]
    assert metrics["test_acc"].iloc[-1] == run.summary.final_test_acc
    assert (metrics["layers.fc1.mean_update_norm"] > 0).all()
    rounds = [[(number, 1, 3), (number, 2, 3), (number, 3, 3), "round"] for number in (1, 2)]
    assert seen == [("run", 0), *rounds[0], *rounds[1], "end"]
    shown = capsys.readouterr()
    assert shown.out.count("\n") == 2  # a line a round
    # FedML's service is for `fedml run` only.
    assert shown.err.startswith("warning: common_args.using_mlops: true: ")
    options = [f"{key}={str(v).lower()}" for key, v in (QUICK | {"using_mlops": True}).items()]
    again = fp.run(RECIPE, overrides=options, output=str(tmp_path / "run"), resume=True)
    assert (again.was_finished, again.summary) == (True, run.summary)


@pytest.mark.slow
@pytest.mark.every_python
def test_bar_and_trackers_have_the_records_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb  # takes a second

    wandb.setup()  # reads the variables of the environment, once a process
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logged, plotted, terminal = [], [], io.StringIO()
    run_of_wandb = wandb.sdk.wandb_run.Run
    log = run_of_wandb.log
    monkeypatch.setattr(run_of_wandb, "log", lambda run, x: (logged.append(x), log(run, x)))
    monkeypatch.setattr("tensorboardX.SummaryWriter.add_scalar", lambda _, *x: plotted.append(x))
    monkeypatch.setattr(sys, "stderr", terminal)
    terminal.isatty = lambda: True
    keys = {"enable_wandb": True, "wandb_project": "digits", "mlops_api_key": "SECRET"}
    quick_run(tmp_path, followers=[TensorBoard()], **keys)
    assert "\rround 1/2 " in terminal.getvalue()
    assert "100%, round 2: accuracy " in terminal.getvalue()
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(b"SECRET" in content for content in written)
    assert list((tmp_path / "wandb").glob("offline-run-*"))
    assert wandb.run is None
    for values, record in zip(logged, read_records(tmp_path), strict=True):
        number = values.pop("round")
        assert (number, values["Test/Acc"]) == (record["round"], record["test_acc"])
        assert values["NWDA/mean_update_norm"] == record["mean_update_norm"]
        layer = record["layers"]["fc2"]["server_update_norm"]
        assert values["NWDA/fc2/server_update_norm"] == layer
        assert {tag: value for tag, value, at in plotted if at == number} == values


#: What Python has for a number, a path and a list.
OBJECTS = {"random_seed": np.int64(3), "data_dir": Path("😀"), "image_size": np.array([8, 8])}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"overrides": "beta=-1"}, r"overrides: train_args\.beta: -1"),
        ({"overrides": OBJECTS | {"beta": -1}}, r"overrides: train_args\.beta: -1.*\Z"),
        ({"overrides": [3]}, "overrides: a list: must be a mapping"),
        ({"backend": "mpi"}, "backend: 'mpi': must be 'sp' or 'MPI'"),
        ({"output": 3}, "output: 3: must be a path"),
        ({"followers": None}, "followers: null: must be a list of objects of .*Follower"),
        ({"followers": "tensorboard"}, "followers: 'tensorboard': "),
        ({"followers": [fp.Follower(), print]}, "followers: a builtin_function_or_method: "),
        ({"output": "typo", "resume": True}, r"resume=True: .*typo: "),
        *(({"output": here, "overwrite": True}, "output: .*current") for here in (".", "a/..")),
    ],
)
def test_run_names_a_wrong_argument(own_code: Path, given: dict[str, Any], said: str) -> None:
    with pytest.raises(fp.UserError, match=f"^{said}"):
        fp.run(RECIPE, **given)
    assert not any(own_code.iterdir())


def test_recipe_alone_replaces_and_continues_no_run(tmp_path: Path) -> None:
    """Its switches are for FedML scripts, which have no options."""
    quick_run(tmp_path, comm_round=1)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    for switch in ("overwrite", "resume"):
        with pytest.raises(fp.UserError, match="it already holds a run"):
            quick_run(tmp_path, comm_round=2, **{f"tracking_args.{switch}": True})
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_summary_is_of_the_run_whose_folder_has_moved(tmp_path: Path) -> None:
    moving = follower(end=lambda: (tmp_path / "run").rename(tmp_path / "kept"))
    run = quick_run(tmp_path / "run", comm_round=1, followers=[moving])
    assert run.summary.final_test_acc == read_records(tmp_path / "kept")[-1]["test_acc"]


def test_model_is_tried_in_this_thread_by_a_single_worker(tmp_path: Path) -> None:
    """Which a signal ends at once; the interpreter waits for others."""
    threads = list[threading.Thread]()
    watch = Doing(lambda _, x: (threads.append(threading.current_thread()), x)[1])
    model = nn.Sequential(watch, nn.Flatten(), nn.Linear(64, 10))
    quick_run(tmp_path / "run", comm_round=1, model=model)
    assert threads[0] is threading.main_thread()


def test_callers_default_device_is_not_that_of_a_run(tmp_path: Path) -> None:
    """A program may have its tensors made on a GPU; some of a run's were, beside others."""
    usual = quick_run(tmp_path / "usual", comm_round=1)
    with torch.device("meta"):
        run = quick_run(tmp_path / "run", comm_round=1)
        fp.load_model(run)
        assert torch.empty(0).is_meta
    assert run.summary.final_test_acc == usual.summary.final_test_acc


def accuracy(model: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    with torch.no_grad():
        return (model(inputs).argmax(1) == labels).float().mean().item()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, fp.Run]:
    """A run of the digits, and one of objects."""
    folder = tmp_path_factory.mktemp("runs")
    given = {"partition_method": "iid", "comm_round": 1, "recipe": "digits_noniid_b_fedavg"}
    objects = {"digits": {}, "own": {"model": NET, "data": DATA}}
    return {name: quick_run(folder / name, **given, **own) for name, own in objects.items()}


def test_model_has_the_recorded_accuracy(runs: dict[str, fp.Run]) -> None:
    """On raw images, of either type; and on custom inputs, unchanged."""
    model, pixels = fp.load_model(runs["digits"].folder), load_digits(0).parts
    before, given = pixels.test.inputs.clone(), NET(4)
    weight = given.fc1.weight.clone()
    assert not model.training
    for images in (pixels.test.inputs, pixels.test.inputs.float()):
        found = accuracy(model, images, pixels.test.labels)
        assert found == pytest.approx(runs["digits"].summary.final_test_acc)
    for model in (NET, given):
        found = accuracy(fp.load_model(runs["own"].folder, model), *TEST)
        assert found == pytest.approx(runs["own"].summary.final_test_acc)
    assert torch.equal(pixels.test.inputs, before)
    assert torch.equal(given.fc1.weight, weight)


@pytest.mark.parametrize(
    ("run", "model", "named"),
    [
        ("own", None, "model="),
        ("own", cell("width=8", "width=9")["Net"], "fc1"),
        ("own", nn.Identity(), "model"),
        ("digits", NET, "nnnn_digits"),
    ],
)
def test_load_model_refuses_another_model(
    runs: dict[str, fp.Run], run: str, model: object, named: str
) -> None:
    with pytest.raises(fp.UserError, match=f"^.*{named}.*$"):
        fp.load_model(runs[run].folder, model)


@pytest.mark.slow
@pytest.mark.every_python
def test_base_recipe_says_what_it_has(own_code: Path, content: Any) -> None:
    """FedAvg with the usual settings, on custom data and a custom model; the rest by overrides."""
    x, y, *test = DATA[:4]
    given = {"model": NET, "data": (x, y, *test), "backend": "sp"}
    settings = {"comm_round": 2, "learning_rate": 0.1, "using_gpu": False}
    run = fp.run("base", overrides=settings, **given)
    assert run.folder == own_code / "runs/base-seed0"
    said = (
        "base: federated_optimizer PaperFedAvg, client_num_in_total 10, client_num_per_round 10, "
    )
    said += "comm_round 2, epochs 1, batch_size 32, client_optimizer sgd, learning_rate 0.1, "
    assert said in (run.folder / "fedml.log").read_text()
    clients = {"client_num_in_total": 10, "client_num_per_round": 10, "partition_method": "iid"}
    settings |= clients | {"epochs": 1, "batch_size": 32, "classes_per_client": 2}
    fp.run("digits_noniid_b_fedavg", overrides=settings, output="other", **given)
    assert content(run.folder) == content(own_code / "other")
    with pytest.raises(fp.UserError, match=r"data_args\.dataset: missing"):
        fp.run("base", model=NET)


def test_load_model_warns_of_another_model_that_fits(
    runs: dict[str, fp.Run], caplog: pytest.LogCaptureFixture
) -> None:
    """Such as a module of the same layers for one that the recipe names."""
    folder = runs["digits"].folder
    named = fp.load_model(folder)
    given = create_model("nnnn_digits", seed=1)
    assert not caplog.records
    found = fp.load_model(folder, given)
    assert "has nnnn_digits for model_args.model" in caplog.text
    torch.testing.assert_close(found.state_dict(), named.state_dict(), rtol=0, atol=0)


def test_load_model_without_a_model_is_refused(tmp_path: Path, runs: dict[str, fp.Run]) -> None:
    with pytest.raises(fp.UserError, match=r"recipe\.yaml"):
        fp.load_model(tmp_path / "nowhere")
    with pytest.raises(fp.UserError, match="folder: null: must be a path"):
        fp.load_model(None)
    (tmp_path / "recipe.yaml").write_bytes((runs["digits"].folder / "recipe.yaml").read_bytes())
    tensors = save({"w": torch.zeros(2)})
    for content in (None, b"no tensors", tensors, save({}, {"fednnnn_plugin": "{}"})):
        if content is not None:
            (tmp_path / "model.safetensors").write_bytes(content)
        with pytest.raises(fp.UserError, match=r"model\.safetensors: "):
            fp.load_model(tmp_path)


def test_commit_of_a_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And whether it is what runs; none outside a clone, and before the first."""

    def git(*words: str, folder: str = "clone") -> str:
        place = tmp_path / folder
        place.mkdir(exist_ok=True)
        monkeypatch.setattr(fp, "__file__", str(place / "fednnnn_plugin" / "__init__.py"))
        command = ("git", "-c", "user.name=n", "-c", "user.email=e", "-C", str(place), *words)
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def found() -> str | None:
        commit.cache_clear()
        return commit()

    git("version")
    assert found() is None
    git("init", "-b", "main")
    assert found() is None
    source = tmp_path / "clone" / "source.py"
    source.write_text("1")
    git("add", "source.py")
    git("commit", "-m", "one")
    git("tag", "v1")
    first = git("rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # as in a hook of git's
    assert found() == first
    source.write_text("2")
    assert found() == f"{first}-dirty"
    monkeypatch.setattr(fp, "__file__", str(tmp_path / "clone" / "venv" / "packages" / "x.py"))
    assert found() is None  # installed in another's clone
