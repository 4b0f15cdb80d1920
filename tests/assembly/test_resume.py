"""Going on after an end at any moment: the same bytes as without it. Kills: ``trust/``."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

import fednnnn_plugin as fp
from fednnnn_plugin.assembly import run_writer
from fednnnn_plugin.assembly.unchanged import (
    begun_with,
    check_unchanged,
    is_of_other_code,
    keep_fingerprint,
)
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.errors import RunError, UserError
from fednnnn_plugin.processes.devices import device_name
from fednnnn_plugin.quantities import RoundRecord
from fednnnn_plugin.run_folder.folder import RunFolder

from ..tiny import Content, Start, Tiny, follower

FIVE = {"comm_round": 5, "checkpoint_every": 2}
LINEAR = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


@pytest.fixture(scope="module")
def finished(data: FederatedData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of five rounds, with a checkpoint every second."""
    folder = tmp_path_factory.mktemp("runs")
    Tiny(folder, data)("whole", **FIVE)
    return folder / "whole"


@pytest.fixture
def whole(finished: Path, tmp_path: Path) -> Path:
    """A copy of it, where `resume` finds it."""
    return shutil.copytree(finished, tmp_path / "whole")


def test_best_round_of_an_earlier_version_stays(tiny: Tiny) -> None:
    """Its records do not say which rounds were tested."""
    best = tiny("run", comm_round=2)
    metrics = tiny.folder / "run/metrics.jsonl"
    lines = [json.loads(line) | {"tested": None} for line in metrics.read_text().splitlines()]
    lines[0]["test_acc"] = 0.99
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary = tiny("run", mode="resume", comm_round=3)
    assert (summary.best_test_acc, summary.best_round) == (0.99, 1) != (best.best_test_acc, 1)


def test_gpu_that_computes_no_more_is_one_line(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says after which round --resume continues; the GPU does not give the second checkpoint."""
    done, pack = [], run_writer.packed

    def packed(*given: Any) -> bytes:
        done.append(1)
        if len(done) > 1:
            raise RuntimeError("CUDA error: an illegal address\nCUDA kernel errors might be")
        return pack(*given)

    monkeypatch.setattr(run_writer, "packed", packed)
    said = (
        r"^the GPU computes no more \(CUDA error: an illegal address\): .*resume.* after round 2$"
    )
    with pytest.raises(RunError, match=said):
        tiny("run", **FIVE)
    monkeypatch.undo()
    assert tiny("run", mode="resume", **FIVE).rounds == 5


@pytest.fixture
def resume(tiny: Tiny) -> Callable[..., Any]:
    return lambda **given: tiny("whole", mode="resume", **FIVE | given)


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    [
        {"epochs": None, "local_steps": 3},
        {"epochs": 1.5},
        {"epochs": 2, "train_transform": "own:noisy"},
        {"learning_rate_schedule": "own:slower"},
        {"client_sampling": "by_size", "partition_sizes": "power_law", "min_samples": 2}
        | {"power_law_exponent": 0.7},
        {"client_num_in_total": 4, "metrics": ["accuracy"], "model": "own:Net"}
        | {"data": "own:datasets"},
    ],
    ids="-".join,
)
def test_run_begun_on_two_workers_and_resumed_has_the_bits_of_one(
    start: Start, content: Content, given: dict[str, Any]
) -> None:
    """What the trial pass before each start draws leaves no trace."""
    given = given | {"allow_code": True}
    start("whole", comm_round=3, **given)
    start("parts", comm_round=1, worker_num=2, **given)
    start("parts", comm_round=3, worker_num=2, resume=True, **given)
    assert content(Path("whole")) == content(Path("parts"))


def test_equal_settings_are_the_same_in_any_order(start: Start) -> None:
    steps = {"name": "step", "every": 3, "factor": 0.5}
    start("run", comm_round=1, learning_rate_schedule=steps)
    turned = dict(reversed(steps.items()))
    run = start("run", comm_round=2, learning_rate_schedule=turned, resume=True)
    assert run.summary.rounds == 2


def test_round_on_record_is_told_where_its_checkpoint_is_cut(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once: a run that goes on begins after it."""
    save, told, cut = run_writer.save_checkpoint, list[int](), [2]

    def interrupted(folder: Path, server: Any, number: int) -> None:
        if number in cut:
            cut.remove(number)
            raise KeyboardInterrupt
        save(folder, server, number)

    monkeypatch.setattr(run_writer, "save_checkpoint", interrupted)

    def tell(record: RoundRecord) -> None:
        told.append(record.round)
        if record.round == 2:
            raise ValueError("which does not hide the interrupt")

    followers = [follower(round_done=tell)]
    given = {"comm_round": 3, "checkpoint_every": 1, "followers": followers}
    with pytest.raises(KeyboardInterrupt):
        tiny("run", **given)
    tiny("run", mode="resume", **given)
    assert told == [1, 2, 3]


def test_resume_without_a_checkpoint_begins_anew(resume: Any, content: Any, whole: Path) -> None:
    """Half-written files are removed, and another device changes nothing."""
    before, done = content(whole), Mock()
    shutil.rmtree(whole / "checkpoint")
    (whole / "summary.json").unlink()
    with (whole / "metrics.jsonl").open("ab") as metrics:
        metrics.write(b'{"round": 6, "test_acc"')
    (whole / ".model.safetensors.fednnnn-tmp").write_bytes(b"half")
    elsewhere = {"worker_num": 1, "gpu_util_parse": "host1:1"}
    resume(followers=[follower(round_done=done)], **elsewhere)
    assert done.call_count == 5
    assert content(whole) == before
    assert not list(whole.rglob("*tmp"))


def test_resume_of_a_finished_run(tiny: Tiny, resume: Any, content: Any, whole: Path) -> None:
    def round_is_saved() -> None:  # where no checkpoint is due
        assert list(whole.glob("checkpoint/round-000007.*"))

    before, copy = files(whole), whole.with_name("copy")
    shutil.copytree(whole, copy, copy_function=os.link)
    assert resume(comm_round=3) is None
    assert files(whole) == before
    assert resume(label="ours") is None
    assert [*fp.read_runs(whole)["method"].unique()] == ["ours"]
    assert {path for path, content in files(whole).items() if content != before[path]} == {
        whole / "recipe.yaml"
    }
    ending = follower(round_done=Mock(side_effect=[None, EOFError]), end=round_is_saved)
    with pytest.raises(EOFError):
        resume(comm_round=8, followers=[ending])
    stopped = fp.read_runs(whole).drop_duplicates("run").squeeze()
    assert (stopped.finished, stopped.device) == (False, device_name(torch.device("cpu")))
    assert json.loads((whole / "summary.json").read_text())["rounds"] == 7
    assert resume(comm_round=8).rounds == 8
    assert [*fp.read_runs(whole)["method"].unique()] == ["ours"]
    tiny("eight", **FIVE | {"comm_round": 8})
    assert content(whole) == content(whole.with_name("eight"))
    assert [*files(copy).values()] == [*before.values()]  # hard links keep their bytes


def test_folder_whose_name_is_not_utf8_is_resumed(tiny: Tiny, content: Any, whole: Path) -> None:
    name = "caf\udce9"
    tiny(name, **FIVE | {"comm_round": 2})
    tiny(name, mode="resume", **FIVE)
    assert content(tiny.folder / name) == content(whole)


def test_interrupt_of_the_last_save_costs_no_round(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    saving = Mock(side_effect=[KeyboardInterrupt, None])
    monkeypatch.setattr(run_writer, "write_atomically", saving)
    with pytest.raises(KeyboardInterrupt):
        tiny(comm_round=1, checkpoint_every=2)
    assert list(tiny.folder.glob("run/checkpoint/round-000001.*"))
    assert saving.call_count == 2


def test_run_that_was_stopped_and_is_killed_as_it_goes_on_is_not_finished(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its recipe was written anew, before a round."""
    tiny(comm_round=4, checkpoint_every=2, stop={"patience": 1, "min_delta": 0.9})
    monkeypatch.setattr("fednnnn_plugin.assembly.federation._simulate", Mock(side_effect=EOFError))
    again = {
        "comm_round": 4,
        "checkpoint_every": 2,
        "mode": "resume",
        "stop": {"patience": 2, "min_delta": 0.9},
    }
    with pytest.raises(EOFError):
        tiny(**again)
    monkeypatch.undo()
    assert tiny(**again) is not None


@pytest.mark.parametrize(("moved", "taken"), [(True, True), (False, True), (False, False)])
def test_folder_no_longer_the_runs_is_left_alone(tiny: Tiny, moved: bool, taken: bool) -> None:
    """Whether or not another run has taken its place."""
    folder = tiny.folder / "run"

    def give_away(record: RoundRecord) -> None:
        if record.round == 3:
            folder.rename(tiny.folder / "elsewhere") if moved else (folder / ".lock").unlink()
            if taken:
                tiny(mode="overwrite", comm_round=2)
            others.update(files(folder))

    others: dict[Path, bytes] = {}
    said = rf"^{folder}: moved, or its \.lock removed.* what was saved is where the folder is now$"
    with pytest.raises(RunError, match=said):
        tiny(followers=[follower(round_done=give_away)], **FIVE)
    assert files(folder) == others
    assert moved == bool(list(tiny.folder.glob("elsewhere/checkpoint/round-000002.*")))


def cut_newest_checkpoint(folder: Path) -> None:
    """Round 4's is whole, the model is of round 5."""
    (folder / "summary.json").unlink()
    newest = max((folder / "checkpoint").iterdir())
    newest.write_bytes(newest.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("harm", "given", "said"),
    [
        (None, {"comm_round": 9, "beta": 0.9}, r"train_args\.beta: "),
        (None, {"comm_round": 7, "model": LINEAR}, "its checkpoint is of another model"),
        # Its records and its summary were gone at once.
        (lambda run: shutil.rmtree(run / "checkpoint"), {"comm_round": 7}, "no whole checkpoint"),
        (cut_newest_checkpoint, {"comm_round": 4}, "comm_round: 4: .* is at round 5 already"),
    ],
)
def test_resume_that_does_not_fit_is_refused(
    resume: Any, whole: Path, harm: Any, given: dict[str, Any], said: str
) -> None:
    if harm:
        harm(whole)
    before = files(whole)
    with pytest.raises(UserError, match=f"^--resume: .*{said}"):
        resume(**given)
    assert files(whole) | {whole / "fedml.log": before[whole / "fedml.log"]} == before


def test_what_a_run_was_begun_with_is_compared(tmp_path: Path, caplog: Any) -> None:
    """Another Python's code is not compared, other versions and instructions are one warning."""
    folder, before = RunFolder(tmp_path), {"code": "1", "weights": "1"}
    other_code, other_model = {"code": "2", "weights": "1"}, {"code": "2", "weights": "2"}
    begun = begun_with(torch.device("cpu"), "fp32")
    keep_fingerprint(folder, {"model": before}, begun)
    assert is_of_other_code(folder, other_code)
    with pytest.raises(UserError, match=r"^--resume: model \(code\): "):
        check_unchanged(folder, {"model": other_code}, begun)
    assert not caplog.records
    stored = json.loads(folder.fingerprint.read_text())
    stored["versions"] |= {"python": "3.1.0", "torch": "1.0"}
    stored["device"] |= {"name": "cpu (8086, 99 cores)", "instructions": "AVX9"}
    folder.fingerprint.write_text(json.dumps(stored))
    assert not is_of_other_code(folder, other_code)
    check_unchanged(folder, {"model": other_code}, begun)
    [line] = caplog.messages
    assert "python 3.1.0" in line
    assert "torch 1.0" in line
    assert "instructions AVX9, now " in line
    assert "8086" not in line
    with pytest.raises(UserError, match=r"^--resume: model \(weights\): "):
        check_unchanged(folder, {"model": other_model}, begun)
    caplog.clear()
    of = {"code": "1", "not_covered": "torch._C.Generator"}
    keep_fingerprint(folder, {"model": of}, begun)
    check_unchanged(folder, {"model": of}, begun)
    [line] = caplog.messages
    assert "model: not compared, as no digest tells it: torch._C.Generator" in line
    on_gpu = {**begun, "device": begun["device"] | {"kind": "cuda", "name": "cuda:0 (GPU)"}}
    keep_fingerprint(folder, {}, on_gpu)
    with pytest.raises(UserError, match=r"^--resume: device_args: .* cuda"):
        check_unchanged(folder, {}, begun)


def test_another_split_of_packaged_data_is_refused(
    tiny: Tiny, data: FederatedData, whole: Path
) -> None:
    """As another NumPy may draw it; another order within a client is another split, too."""
    first, *others = data.client_indices
    other = Tiny(tiny.folder, replace(data, client_indices=(first.flip(0), *others)))
    with pytest.raises(UserError, match=r"^--resume: data_set \(client_indices\): "):
        other("whole", mode="resume", **FIVE | {"comm_round": 7})
    other = Tiny(tiny.folder, replace(data, train_images=data.train_images + 1))
    with pytest.raises(UserError, match=r"^--resume: data_set \(tensors\): "):
        other("whole", mode="resume", **FIVE | {"comm_round": 7})


def test_overwrite_replaces_the_run_alone(tiny: Tiny, whole: Path) -> None:
    (whole / "sub").mkdir()
    others = [whole / "notes.txt", whole / "sub/.draft.fednnnn-tmp", whole / "checkpoint/notes.txt"]
    for path in others:
        path.write_text("mine")
    before = files(whole)
    with pytest.raises(UserError, match="already holds a run: continue with --resume"):
        tiny("whole", comm_round=2)
    assert files(whole) == before
    tiny("whole", mode="overwrite", comm_round=2, checkpoint_every=2)
    assert len(tiny.records("whole")) == 2
    assert [path.name[:12] for path in (whole / "checkpoint").glob("round*")] == ["round-000002"]
    assert [path.read_text() for path in others] == ["mine"] * 3
