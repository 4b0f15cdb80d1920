"""Going on after an end at any moment: the same bytes as without it."""

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

Run = Callable[..., Any]
FIVE = {"comm_round": 5, "checkpoint_every": 2}


class OnRound(Follower):
    """Calls a function with each round's number."""

    def __init__(self, call: Callable[[int], object]) -> None:
        self._call = call

    def round_done(self, record: RoundRecord) -> None:
        self._call(record.round)


class Ended(Exception):
    pass


class Ending(Follower):
    """Ends a run after its next round, and sees that the round is saved by then."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def round_done(self, record: RoundRecord) -> None:
        self._round = record.round
        raise Ended

    def end(self) -> None:
        assert list(self._folder.glob(f"checkpoint/round-{self._round:06d}-*"))


@pytest.fixture(scope="module")
def runs(run: Run, recipe: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of five rounds, checkpoint every second; ``after-R`` is its folder after round R."""
    folder = tmp_path_factory.mktemp("runs")

    def copy(number: int) -> None:
        shutil.copytree(folder / "whole", folder / f"after-{number}")

    run(recipe(**FIVE), folder / "whole", followers=[OnRound(copy)])
    return folder


@pytest.fixture
def whole(runs: Path, tmp_path: Path) -> Path:
    """The finished run, with the others beside it, to be changed."""
    shutil.copytree(runs, tmp_path / "runs")
    return tmp_path / "runs" / "whole"


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def half_written_files(folder: Path) -> None:
    with (folder / "metrics.jsonl").open("ab") as metrics:
        metrics.write(b'{"round": 6, "test_acc"')
    (folder / "checkpoint").mkdir(exist_ok=True)
    for left_over in ("checkpoint/.round-000004-ab.safetensors", ".model.safetensors"):
        (folder / f"{left_over}.fednnnn-tmp").write_bytes(b"half")


def cut_the_newest_checkpoint(folder: Path) -> None:
    newest = max((folder / "checkpoint").iterdir())
    newest.write_bytes(newest.read_bytes()[:-1])


def remove_the_checkpoints(folder: Path) -> None:
    shutil.rmtree(folder / "checkpoint")


@pytest.mark.parametrize(
    ("after", "damage", "begins", "warning"),
    [
        (1, half_written_files, 1, "no checkpoint: starting from round 1"),
        (3, half_written_files, 3, ""),
        (4, remove_the_checkpoints, 1, "no checkpoint: starting from round 1"),
    ],
)
def test_resume_after_a_kill_costs_no_bits(
    run: Run,
    recipe: Run,
    content: Run,
    whole: Path,
    caplog: pytest.LogCaptureFixture,
    after: int,
    damage: Callable[[Path], None],
    begins: int,
    warning: str,
) -> None:
    folder, rounds = whole.with_name(f"after-{after}"), list[int]()
    damage(folder)
    run(recipe(**FIVE), folder, mode="resume", followers=[OnRound(rounds.append)])
    assert rounds == list(range(begins, 6))
    assert content(folder) == content(whole)
    assert warning in caplog.text
    assert not list(folder.rglob("*tmp"))


def test_resume_of_a_finished_run(run: Run, recipe: Run, content: Run, whole: Path) -> None:
    before = files(whole)
    assert run(recipe(**FIVE | {"comm_round": 3}), whole, mode="resume") is None
    assert files(whole) == before
    more = recipe(**FIVE | {"comm_round": 7})
    with pytest.raises(Ended):
        run(more, whole, mode="resume", followers=[Ending(whole)])
    assert not (whole / "summary.json").exists()  # it was of five rounds
    assert run(more, whole, mode="resume").rounds == 7
    run(more, whole.with_name("seven"))
    assert content(whole) == content(whole.with_name("seven"))


def test_interrupt_of_the_last_save_costs_no_round(
    run: Run, recipe: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(path: Path, content: bytes) -> None:
        if path.name == "model.safetensors":
            monkeypatch.setattr(keeper, "write_atomically", write_atomically)
            raise KeyboardInterrupt
        write_atomically(path, content)

    monkeypatch.setattr(keeper, "write_atomically", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(recipe(comm_round=1, checkpoint_every=2), tmp_path)
    assert list(tmp_path.glob("checkpoint/round-000001-*"))


def test_resume_leaves_hard_links_their_bytes(run: Run, recipe: Run, whole: Path) -> None:
    copy = whole.with_name("copy")
    shutil.copytree(whole, copy, copy_function=os.link)
    before = files(copy)
    run(recipe(**FIVE | {"comm_round": 6}), whole, mode="resume")
    assert files(copy) == before
    assert len((whole / "metrics.jsonl").read_text().splitlines()) == 6


@pytest.mark.parametrize("moved", [True, False])
def test_folder_no_longer_the_run_s_is_left_alone(
    run: Run, recipe: Run, tmp_path: Path, moved: bool
) -> None:
    folder, other = tmp_path / "run", recipe(**FIVE | {"comm_round": 2})

    def replace(number: int) -> None:
        if number != 3:
            return
        if moved:
            folder.rename(tmp_path / "elsewhere")
        else:
            (folder / ".lock").unlink()
        run(other, folder, mode="overwrite")

    with pytest.raises(RunError, match=rf"^{folder}: moved, or its \.lock removed"):
        run(recipe(**FIVE), folder, followers=[OnRound(replace)])
    run(other, tmp_path / "alone")
    for name in ("model.safetensors", "recipe.yaml"):
        assert (folder / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2
    if moved:
        assert list(tmp_path.glob("elsewhere/checkpoint/round-000002-*"))


def test_resume_with_other_settings_is_refused(run: Run, recipe: Run, whole: Path) -> None:
    before = files(whole)
    others = {"common_args.random_seed": 1, "beta": 0.9, "epochs": 9}
    with pytest.raises(UserError) as error:
        run(recipe(**FIVE | {"comm_round": 9} | others), whole, mode="resume")
    lines = str(error.value).splitlines()
    keys = ("common_args.random_seed", "train_args.beta", "train_args.epochs")
    for line, key in zip(lines, keys, strict=True):
        assert line.startswith(f"--resume: {key}: ")
        assert line.endswith("and what places ranks on GPUs and cores, may differ")
    assert "0.9: the run in" in lines[1]
    assert "has 0.7" in lines[1]
    assert files(whole) == before


def test_resume_on_other_devices(run: Run, recipe: Run, content: Run, whole: Path) -> None:
    elsewhere = {"device_args.worker_num": 1, "device_args.gpu_util_parse": "host1:1"}
    folder = whole.with_name("after-3")
    run(recipe(**FIVE | elsewhere), folder, mode="resume")
    assert content(folder) == content(whole)


def test_resume_without_checkpoints_is_refused(run: Run, recipe: Run, whole: Path) -> None:
    """Its records and its summary were gone at once."""
    remove_the_checkpoints(whole)
    before = files(whole)
    with pytest.raises(UserError, match="no whole checkpoint of the 5 rounds that are done"):
        run(recipe(**FIVE | {"comm_round": 7}), whole, mode="resume")
    assert files(whole) | {whole / "fedml.log": before[whole / "fedml.log"]} == before


def test_resume_for_fewer_rounds_is_refused(run: Run, recipe: Run, whole: Path) -> None:
    with pytest.raises(UserError, match=r"comm_round: 3: the run in .* is at round 4 already"):
        run(recipe(**FIVE | {"comm_round": 3}), whole.with_name("after-4"), mode="resume")
    whole.joinpath("summary.json").unlink()
    cut_the_newest_checkpoint(whole)  # round 4's is whole, and the model is of round 5
    with pytest.raises(UserError, match=r"comm_round: 4: the run in .* is at round 5 already"):
        run(recipe(**FIVE | {"comm_round": 4}), whole, mode="resume")
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with pytest.raises(UserError, match="its checkpoint is of another model"):
        run(recipe(**FIVE | {"comm_round": 7}), whole, mode="resume", model=model)


def test_overwrite_replaces_the_run_alone(run: Run, recipe: Run, records: Run, whole: Path) -> None:
    (whole / "sub").mkdir()
    others = [whole / "notes.txt", whole / "sub/.draft.fednnnn-tmp", whole / "checkpoint/notes.txt"]
    for path in others:
        path.write_text("mine")
    before, two = files(whole), recipe(**FIVE | {"comm_round": 2})
    with pytest.raises(UserError, match="already holds a run; go on with --resume"):
        run(two, whole)
    assert files(whole) == before
    run(two, whole, mode="overwrite")
    assert len(records(whole)) == 2
    assert [path.name[:12] for path in (whole / "checkpoint").glob("round*")] == ["round-000002"]
    assert [path.read_text() for path in others] == ["mine"] * 3
