"""Going on after an end at any moment: the same bytes as without it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from fednnnn_plugin.engine.progress import Follower
from fednnnn_plugin.engine.records import RoundRecord
from fednnnn_plugin.errors import UserError

MakeRecipe = Callable[..., Any]
Run = Callable[..., Any]
Content = Callable[[Path], tuple[object, ...]]
Resume = Callable[[Path], list[int]]
FIVE: dict[str, Any] = {"comm_round": 5, "checkpoint_every": 2}


@pytest.fixture(scope="module")
def runs(run_in: Run, recipe: MakeRecipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of five rounds, checkpoint every second; ``after-R`` is its folder after round R."""
    folder = tmp_path_factory.mktemp("runs")

    def copy(record: RoundRecord) -> None:
        shutil.copytree(folder / "whole", folder / f"after-{record.round}")

    run_in(recipe(**FIVE), folder / "whole", on_round=copy)
    return folder


@pytest.fixture
def whole(runs: Path, tmp_path: Path) -> Path:
    """The finished run, with the others beside it, to be changed."""
    shutil.copytree(runs, tmp_path / "runs")
    return tmp_path / "runs" / "whole"


@pytest.fixture
def resume(run: Run, recipe: MakeRecipe) -> Resume:
    """Resume the run of five rounds in a folder; return the rounds that were done."""

    def start(folder: Path) -> list[int]:
        rounds: list[int] = []
        run(
            recipe(**FIVE),
            folder,
            mode="resume",
            on_round=lambda record: rounds.append(record.round),
        )
        return rounds

    return start


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("number", [1, 3, 4, 5])
def test_resuming_what_a_killed_process_left_gives_the_same_bytes(
    resume: Resume, content: Content, whole: Path, number: int
) -> None:
    folder = whole.with_name(f"after-{number}")
    with (folder / "metrics.jsonl").open("ab") as metrics:
        metrics.write(b'{"round": 6, "test_acc"')
    (folder / "checkpoint").mkdir(exist_ok=True)
    for left_over in ("checkpoint/.round-000004-ab.safetensors", ".model.safetensors"):
        (folder / f"{left_over}.fednnnn-tmp").write_bytes(b"half")
    assert resume(folder) == list(range(number // 2 * 2 + 1, 6))
    assert content(folder) == content(whole)
    assert not list(folder.rglob("*tmp"))


def cut_the_newest_checkpoint(folder: Path) -> None:
    newest = max((folder / "checkpoint").iterdir())
    newest.write_bytes(newest.read_bytes()[:-1])


def remove_the_checkpoints(folder: Path) -> None:
    shutil.rmtree(folder / "checkpoint")


def break_a_record(folder: Path) -> None:
    metrics = folder / "metrics.jsonl"
    lines = metrics.read_bytes().splitlines(keepends=True)
    metrics.write_bytes(b"".join([*lines[:2], b"\0" * 30 + b"\n", lines[3]]))


@pytest.mark.parametrize(
    ("damage", "begins", "warning"),
    [
        (cut_the_newest_checkpoint, 3, "damaged checkpoint, trying the one before"),
        (remove_the_checkpoints, 1, "no checkpoint: starting from round 1"),
        (break_a_record, 3, "metrics.jsonl holds only 2 whole rounds"),
    ],
)
def test_damage_costs_rounds_and_no_bits(
    resume: Resume,
    content: Content,
    whole: Path,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[Path], None],
    begins: int,
    warning: str,
) -> None:
    folder = whole.with_name("after-4")
    damage(folder)
    assert resume(folder) == list(range(begins, 6))
    assert content(folder) == content(whole)
    assert warning in caplog.text


def test_more_rounds_go_on_where_the_run_ended(
    run: Run, recipe: MakeRecipe, content: Content, whole: Path
) -> None:
    settings = recipe(comm_round=7, checkpoint_every=2)
    assert run(settings, whole, mode="resume").rounds == 7
    run(settings, whole.with_name("seven"))
    assert content(whole) == content(whole.with_name("seven"))


@pytest.mark.parametrize("rounds", [5, 3])
def test_a_finished_run_is_left_alone(
    run: Run, recipe: MakeRecipe, whole: Path, rounds: int
) -> None:
    before = files(whole)
    assert run(recipe(comm_round=rounds, checkpoint_every=2), whole, mode="resume") is None
    assert files(whole) == before


def test_other_settings_are_refused_line_by_line(run: Run, recipe: MakeRecipe, whole: Path) -> None:
    before = files(whole)
    seed = {"common_args.random_seed": 1, "device_args.worker_num": 2}
    changed = recipe(comm_round=9, checkpoint_every=2, beta=0.9, **seed)
    with pytest.raises(UserError) as error:
        run(changed, whole, mode="resume")
    lines = str(error.value).splitlines()
    assert [line.split(":")[1].strip() for line in lines] == [
        "common_args.random_seed",
        "device_args.worker_num",
        "train_args.beta",
    ]
    assert all(line.endswith("only train_args.comm_round may differ") for line in lines)
    assert "0.9: the run in" in lines[2]
    assert "has 0.7" in lines[2]
    assert files(whole) == before


def test_fewer_rounds_and_another_model_are_refused(
    run: Run, recipe: MakeRecipe, whole: Path
) -> None:
    with pytest.raises(UserError, match=r"comm_round: 3: the run in .* is at round 4 already"):
        run(recipe(comm_round=3, checkpoint_every=2), whole.with_name("after-4"), mode="resume")
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with pytest.raises(UserError, match="its checkpoint is of another model"):
        run(recipe(comm_round=7, checkpoint_every=2), whole, mode="resume", model=model)


@pytest.mark.parametrize("mode", ["new", "resume"])
def test_a_run_without_a_finished_round_blocks_nothing(
    run: Run, recipe: MakeRecipe, content: Content, whole: Path, mode: str
) -> None:
    class Unreachable(Follower):
        def begin(self, folder: Path, finished: int) -> None:
            raise UserError("no network")

    folder = whole.with_name("new")
    with pytest.raises(UserError, match="no network"):
        run(recipe(**FIVE), folder, followers=[Unreachable()])
    assert (folder / "recipe.yaml").exists()
    run(recipe(**FIVE), folder, mode=mode)
    assert content(folder) == content(whole)


def test_a_run_is_replaced_only_on_demand_and_nothing_else(
    run: Run, recipe: MakeRecipe, whole: Path
) -> None:
    (whole / "sub").mkdir()
    others = [whole / "notes.txt", whole / "sub/.draft.fednnnn-tmp", whole / "checkpoint/notes.txt"]
    for path in others:
        path.write_text("mine")
    before, two = files(whole), recipe(comm_round=2, checkpoint_every=2)
    with pytest.raises(UserError, match="already holds a run; go on with --resume"):
        run(two, whole)
    assert files(whole) == before
    run(two, whole, mode="overwrite")
    assert len((whole / "metrics.jsonl").read_text().splitlines()) == 2
    assert [path.name[:12] for path in (whole / "checkpoint").glob("round*")] == ["round-000002"]
    assert [path.read_text() for path in others] == ["mine"] * 3
