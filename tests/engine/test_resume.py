"""Going on after an end at any moment: the same bytes as without it. Kills: ``trust/``."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from fednnnn_plugin.engine import keeper
from fednnnn_plugin.engine.followers import Follower
from fednnnn_plugin.engine.records import RoundRecord
from fednnnn_plugin.errors import RunError, UserError
from fednnnn_plugin.files import write_atomically

from .conftest import Tiny

FIVE = {"comm_round": 5, "checkpoint_every": 2}
Run = Callable[..., Any]


class OnRound(Follower):
    """Calls a function with each round's number."""

    def __init__(self, call: Callable[[int], object]) -> None:
        self._call = call

    def round_done(self, record: RoundRecord) -> None:
        self._call(record.round)


@pytest.fixture(scope="module")
def runs(run: Run, recipe: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of five rounds, checkpoint every second; ``after-R`` is its folder after round R."""
    folder = tmp_path_factory.mktemp("runs")

    def copy(number: int) -> None:
        shutil.copytree(folder / "whole", folder / f"after-{number}")

    Tiny(folder, run, recipe)("whole", followers=[OnRound(copy)], **FIVE)
    return folder


@pytest.fixture
def whole(runs: Path, tmp_path: Path) -> Path:
    """The finished run, with the others beside it, where `resume` finds them."""
    shutil.copytree(runs, tmp_path, dirs_exist_ok=True)
    return tmp_path / "whole"


@pytest.fixture
def resume(tiny: Tiny) -> Run:
    return lambda name="whole", **given: tiny(name, mode="resume", **FIVE | given)


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def remove_the_checkpoints(folder: Path) -> None:
    shutil.rmtree(folder / "checkpoint")


def test_resume_without_a_checkpoint_begins_anew(
    resume: Run, content: Run, whole: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Half-written files are removed, and another device changes nothing."""
    folder, rounds = whole.with_name("after-4"), list[int]()
    remove_the_checkpoints(folder)
    with (folder / "metrics.jsonl").open("ab") as metrics:
        metrics.write(b'{"round": 5, "test_acc"')
    (folder / ".model.safetensors.fednnnn-tmp").write_bytes(b"half")
    elsewhere = {"worker_num": 1, "gpu_util_parse": "host1:1"}
    resume(folder.name, followers=[OnRound(rounds.append)], **elsewhere)
    assert rounds == [1, 2, 3, 4, 5]
    assert content(folder) == content(whole)
    assert "no checkpoint: starting from round 1" in caplog.text
    assert not list(folder.rglob("*tmp"))


def test_resume_of_a_finished_run(tiny: Tiny, resume: Run, content: Run, whole: Path) -> None:
    class Ended(Exception):
        pass

    class Ending(Follower):
        """Ends a run after its next round, and sees that the round is saved by then."""

        def round_done(self, record: RoundRecord) -> None:
            raise Ended

        def end(self) -> None:
            assert list(whole.glob("checkpoint/round-000006-*"))

    before, copy = files(whole), whole.with_name("copy")
    shutil.copytree(whole, copy, copy_function=os.link)
    assert resume(comm_round=3) is None
    assert files(whole) == before
    with pytest.raises(Ended):
        resume(comm_round=7, followers=[Ending()])
    assert not (whole / "summary.json").exists()  # it was of five rounds
    assert resume(comm_round=7).rounds == 7
    tiny("seven", **FIVE | {"comm_round": 7})
    assert content(whole) == content(whole.with_name("seven"))
    assert [*files(copy).values()] == [*before.values()]  # hard links keep their bytes


def test_interrupt_of_the_last_save_costs_no_round(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(path: Path, content: bytes) -> None:
        if path.name == "model.safetensors":
            monkeypatch.setattr(keeper, "write_atomically", write_atomically)
            raise KeyboardInterrupt
        write_atomically(path, content)

    monkeypatch.setattr(keeper, "write_atomically", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tiny(comm_round=1, checkpoint_every=2)
    assert list(tmp_path.glob("run/checkpoint/round-000001-*"))


@pytest.mark.parametrize("moved", [True, False])
def test_folder_no_longer_the_run_s_is_left_alone(tiny: Tiny, tmp_path: Path, moved: bool) -> None:
    folder = tmp_path / "run"

    def replace(number: int) -> None:
        if number != 3:
            return
        if moved:
            folder.rename(tmp_path / "elsewhere")
        else:
            (folder / ".lock").unlink()
        tiny(mode="overwrite", comm_round=2)

    with pytest.raises(RunError, match=rf"^{folder}: moved, or its \.lock removed"):
        tiny(followers=[OnRound(replace)], **FIVE)
    tiny("alone", comm_round=2)
    for name in ("model.safetensors", "recipe.yaml"):
        assert (folder / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()
    assert len(tiny.records()) == 2
    if moved:
        assert list(tmp_path.glob("elsewhere/checkpoint/round-000002-*"))


def test_resume_with_other_settings_is_refused(resume: Run, whole: Path) -> None:
    before = files(whole)
    with pytest.raises(UserError) as error:
        resume(comm_round=9, random_seed=1, beta=0.9, epochs=9)
    keys = ("common_args.random_seed", "train_args.beta", "train_args.epochs")
    for line, key in zip(str(error.value).splitlines(), keys, strict=True):
        assert line.startswith(f"--resume: {key}: ")
    assert files(whole) == before


def test_resume_without_checkpoints_is_refused(resume: Run, whole: Path) -> None:
    """Its records and its summary were gone at once."""
    remove_the_checkpoints(whole)
    before = files(whole)
    with pytest.raises(UserError, match="no whole checkpoint of the 5 rounds that are done"):
        resume(comm_round=7)
    assert files(whole) | {whole / "fedml.log": before[whole / "fedml.log"]} == before


def test_resume_for_fewer_rounds_is_refused(resume: Run, whole: Path) -> None:
    with pytest.raises(UserError, match=r"comm_round: 3: the run in .* is at round 4 already"):
        resume("after-4", comm_round=3)
    whole.joinpath("summary.json").unlink()
    newest = max((whole / "checkpoint").iterdir())
    newest.write_bytes(newest.read_bytes()[:-1])  # round 4's is whole, the model is of round 5
    with pytest.raises(UserError, match=r"comm_round: 4: the run in .* is at round 5 already"):
        resume(comm_round=4)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with pytest.raises(UserError, match="its checkpoint is of another model"):
        resume(comm_round=7, model=model)


def test_overwrite_replaces_the_run_alone(tiny: Tiny, whole: Path) -> None:
    (whole / "sub").mkdir()
    others = [whole / "notes.txt", whole / "sub/.draft.fednnnn-tmp", whole / "checkpoint/notes.txt"]
    for path in others:
        path.write_text("mine")
    before = files(whole)
    with pytest.raises(UserError, match="already holds a run; continue with --resume"):
        tiny("whole", comm_round=2)
    assert files(whole) == before
    tiny("whole", mode="overwrite", comm_round=2, checkpoint_every=2)
    assert len(tiny.records("whole")) == 2
    assert [path.name[:12] for path in (whole / "checkpoint").glob("round*")] == ["round-000002"]
    assert [path.read_text() for path in others] == ["mine"] * 3
