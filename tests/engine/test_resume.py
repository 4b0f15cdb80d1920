"""Going on after an end at any moment: the same bytes as without it."""

import json
import logging
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
from torch import nn

from fednnnn_plugin.engine.folder import RunFolder
from fednnnn_plugin.engine.progress import Follower
from fednnnn_plugin.engine.records import RoundRecord
from fednnnn_plugin.errors import UserError

MakeRecipe = Callable[..., Any]
Run = Callable[..., Any]
Records = Callable[..., list[dict[str, Any]]]


def content(folder: Path) -> tuple[bytes, bytes, list[dict[str, Any]]]:
    """The saved model, the newest checkpoint's tensors, and the records but for their times."""
    newest = max((folder / "checkpoint").iterdir())
    tensors = safetensors.torch.save(safetensors.torch.load_file(newest))
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) | {"seconds": None} for line in lines]
    return (folder / "model.safetensors").read_bytes(), tensors, records


@pytest.fixture(scope="module")
def runs(run_in: Run, recipe: MakeRecipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of five rounds, checkpoint every second; ``after-R`` is its folder after round R."""
    folder = tmp_path_factory.mktemp("runs")

    def copy(record: RoundRecord) -> None:
        shutil.copytree(folder / "whole", folder / f"after-{record.round}")

    run_in(recipe(comm_round=5, checkpoint_every=2), folder / "whole", on_round=copy)
    return folder


@pytest.fixture
def whole(runs: Path, tmp_path: Path) -> Path:
    """The finished run, with the others beside it, to be changed."""
    shutil.copytree(runs, tmp_path / "runs")
    return tmp_path / "runs" / "whole"


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
def test_resuming_what_a_killed_process_left_gives_the_same_bytes(
    run: Run, recipe: MakeRecipe, whole: Path, number: int
) -> None:
    folder = whole.with_name(f"after-{number}")
    with (folder / "metrics.jsonl").open("ab") as metrics:
        metrics.write(b'{"round": 6, "test_acc"')
    (folder / "checkpoint").mkdir(exist_ok=True)
    for left_over in ("checkpoint/.round-000004-ab.safetensors", ".model.safetensors"):
        (folder / f"{left_over}.fednnnn-tmp").write_bytes(b"half")
    rounds: list[int] = []
    settings = recipe(comm_round=5, checkpoint_every=2)
    run(settings, folder, mode="resume", on_round=lambda record: rounds.append(record.round))
    assert rounds == list(range(number // 2 * 2 + 1, 6))
    assert content(folder) == content(whole)
    assert not list(folder.rglob("*tmp"))


def test_an_interrupt_saves_the_last_round(run: Run, recipe: MakeRecipe, whole: Path) -> None:
    def interrupt(record: RoundRecord) -> None:
        if record.round == 3:
            raise KeyboardInterrupt

    folder, settings = whole.with_name("interrupted"), recipe(comm_round=5, checkpoint_every=2)
    with pytest.raises(KeyboardInterrupt):
        run(settings, folder, on_round=interrupt)
    assert sorted(path.name[:12] for path in (folder / "checkpoint").iterdir()) == [
        "round-000002",
        "round-000003",
    ]
    rounds: list[int] = []
    run(settings, folder, mode="resume", on_round=lambda record: rounds.append(record.round))
    assert rounds == [4, 5]
    assert content(folder) == content(whole)


def test_a_damaged_newest_checkpoint_costs_its_rounds_and_no_bits(
    run: Run, recipe: MakeRecipe, whole: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = whole.with_name("after-4")
    newest = max((folder / "checkpoint").iterdir())
    newest.write_bytes(newest.read_bytes()[:-1])
    rounds: list[int] = []
    run(
        recipe(comm_round=5, checkpoint_every=2),
        folder,
        mode="resume",
        on_round=lambda record: rounds.append(record.round),
    )
    assert rounds == [3, 4, 5]
    assert content(folder) == content(whole)
    assert f"{newest}: damaged checkpoint" in caplog.text


def test_without_any_checkpoint_it_starts_over_with_a_warning(
    run: Run, recipe: MakeRecipe, whole: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = whole.with_name("after-4")
    shutil.rmtree(folder / "checkpoint")
    with caplog.at_level(logging.WARNING):
        run(recipe(comm_round=5, checkpoint_every=2), folder, mode="resume")
    assert "no checkpoint: starting from round 1" in caplog.text
    assert content(folder) == content(whole)


def test_damaged_records_fall_back_where_a_checkpoint_allows(
    run: Run, recipe: MakeRecipe, whole: Path
) -> None:
    settings = recipe(comm_round=5, checkpoint_every=2)
    for damaged, begins in ((4, 3), (3, 3), (2, None)):
        folder = whole.with_name(f"damaged-{damaged}")
        shutil.copytree(whole.with_name("after-4"), folder)
        lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
        lines[damaged - 1] = b"\0" * 30 + b"\n"
        (folder / "metrics.jsonl").write_bytes(b"".join(lines))
        if begins is None:
            with pytest.raises(UserError, match=r"metrics\.jsonl: line 2 is damaged or missing"):
                run(settings, folder, mode="resume")
            assert (folder / "metrics.jsonl").read_bytes() == b"".join(lines)
        else:
            run(settings, folder, mode="resume")
            assert content(folder) == content(whole)


def test_more_rounds_go_on_where_the_run_ended(
    run: Run, recipe: MakeRecipe, whole: Path, records: Records
) -> None:
    settings = recipe(comm_round=7, checkpoint_every=2)
    assert run(settings, whole, mode="resume").rounds == 7
    run(settings, whole.with_name("seven"))
    assert content(whole) == content(whole.with_name("seven"))
    assert [record["round"] for record in records(whole)] == list(range(1, 8))


@pytest.mark.parametrize("rounds", [5, 3])
def test_a_finished_run_is_left_alone(
    run: Run, recipe: MakeRecipe, whole: Path, rounds: int
) -> None:
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    settings = recipe(comm_round=rounds, checkpoint_every=2)
    assert run(settings, whole, mode="resume") is None
    assert {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()} == before


def test_fewer_rounds_than_are_done_are_refused(run: Run, recipe: MakeRecipe, whole: Path) -> None:
    folder = whole.with_name("after-4")
    with pytest.raises(UserError, match=r"comm_round: 3: the run in .* is at round 4 already"):
        run(recipe(comm_round=3, checkpoint_every=2), folder, mode="resume")


def test_any_other_change_is_refused_line_by_line(
    run: Run, recipe: MakeRecipe, whole: Path
) -> None:
    before = content(whole)
    changed = recipe(
        comm_round=9,
        checkpoint_every=2,
        beta=0.9,
        **{"common_args.random_seed": 1, "device_args.worker_num": 2},
    )
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
    assert content(whole) == before


def test_a_checkpoint_of_another_model_is_refused(
    run: Run, recipe: MakeRecipe, whole: Path
) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with pytest.raises(UserError, match="its checkpoint is of another model"):
        run(recipe(comm_round=7, checkpoint_every=2), whole, mode="resume", model=model)


def test_resuming_where_nothing_is_is_refused(run: Run, recipe: MakeRecipe, whole: Path) -> None:
    """It would be a mistyped --output, and cost the rounds that were done elsewhere."""
    folder = whole.with_name("new")
    with pytest.raises(UserError, match=r"--resume: .*new: it holds no run"):
        run(recipe(comm_round=5, checkpoint_every=2), folder, mode="resume")
    assert not folder.exists()


@pytest.mark.parametrize("mode", ["new", "resume"])
def test_a_run_without_a_finished_round_blocks_nothing(
    run: Run, recipe: MakeRecipe, whole: Path, mode: str
) -> None:
    class Unreachable(Follower):
        def begin(self, folder: Path, finished: int) -> None:
            raise UserError("no network")

    folder, settings = whole.with_name("new"), recipe(comm_round=5, checkpoint_every=2)
    with pytest.raises(UserError, match="no network"):
        run(settings, folder, followers=[Unreachable()])
    assert (folder / "recipe.yaml").exists()
    run(settings, folder, mode=mode)
    assert content(folder) == content(whole)


def test_files_that_are_not_of_a_run_are_left_alone(
    run: Run, recipe: MakeRecipe, tmp_path: Path
) -> None:
    (tmp_path / "recipe.yaml").write_text("mine")
    with pytest.raises(UserError, match=r"recipe\.yaml: it is there already"):
        run(recipe(), tmp_path)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_a_run_without_its_recipe_is_not_started_over(
    run: Run, recipe: MakeRecipe, whole: Path
) -> None:
    (whole / "recipe.yaml").unlink()
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=r"--resume: .*recipe\.yaml: missing: put it back, or"):
        run(recipe(comm_round=5, checkpoint_every=2), whole, mode="resume")
    assert {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()} == before


def test_overwriting_replaces_the_run_and_nothing_else(
    run: Run, recipe: MakeRecipe, whole: Path
) -> None:
    (whole / "notes.txt").write_text("mine")
    (whole / "sub").mkdir()
    (whole / "sub" / ".draft.fednnnn-tmp").write_text("mine")
    run(recipe(comm_round=2, checkpoint_every=2), whole, mode="overwrite")
    assert len((whole / "metrics.jsonl").read_text().splitlines()) == 2
    assert [path.name[:12] for path in (whole / "checkpoint").iterdir()] == ["round-000002"]
    assert (whole / "notes.txt").read_text() == "mine"
    assert (whole / "sub" / ".draft.fednnnn-tmp").exists()


def test_a_new_run_does_not_touch_an_old_one(run: Run, recipe: MakeRecipe, whole: Path) -> None:
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match="already holds a run; go on with --resume"):
        run(recipe(), whole)
    assert {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("mode", ["new", "resume", "overwrite"])
def test_a_folder_in_use_is_refused(run: Run, recipe: MakeRecipe, whole: Path, mode: str) -> None:
    folder = whole.with_name("busy")
    folder.mkdir()
    with RunFolder(folder).locked("new"):
        refusals: list[BaseException] = []

        def second() -> None:
            try:
                run(recipe(), folder, mode=mode)
            except UserError as error:
                refusals.append(error)

        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    assert [str(error) for error in refusals] == [
        f"--output: {folder}: another run is writing to it"
    ]
    run(recipe(), folder, mode=mode)


def test_a_folder_that_cannot_be_made_is_refused(
    run: Run, recipe: MakeRecipe, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(UserError, match=r"cannot be written to: (File exists|Not a directory)"):
            run(recipe(), folder)
    assert (tmp_path / "file").read_text() == "mine"
