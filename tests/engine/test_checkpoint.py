"""Checkpoints: the newest whole one, whatever happened to the others."""

import hashlib
import logging
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fednnnn_plugin.engine.checkpoint import Checkpoint, CheckpointFolder
from fednnnn_plugin.errors import UserError

MANY = 10**6


def server(number: int) -> dict[str, torch.Tensor]:
    return {"w": torch.full((3,), float(number)), "steps": torch.tensor(number)}


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    """Holds rounds 1 and 2."""
    checkpoints = CheckpointFolder(tmp_path / "checkpoint")
    for number in (1, 2):
        checkpoints.save(server(number), number)
    return checkpoints


def files(folder: CheckpointFolder) -> list[Path]:
    return sorted(folder.path.iterdir())


def round_of(checkpoint: Checkpoint | None) -> int | None:
    if checkpoint is None:
        return None
    number = checkpoint.round
    assert torch.equal(checkpoint.server["w"], server(number)["w"])
    return number


def test_it_gives_back_what_was_saved(folder: CheckpointFolder) -> None:
    checkpoint = folder.load(MANY)
    assert checkpoint is not None
    assert checkpoint.round == 2
    assert checkpoint.server.keys() == {"w", "steps"}
    assert checkpoint.server["w"].tolist() == [2.0, 2.0, 2.0]
    assert checkpoint.server["steps"].dtype == torch.int64


def test_an_empty_or_missing_folder_holds_none(tmp_path: Path) -> None:
    assert CheckpointFolder(tmp_path / "none").load(MANY) is None
    (tmp_path / "empty").mkdir()
    assert CheckpointFolder(tmp_path / "empty").load(MANY) is None


def test_two_are_kept(folder: CheckpointFolder) -> None:
    for number in (3, 5, 1_000_000):
        folder.save(server(number), number)
        assert round_of(folder.load(MANY)) == number
    assert [path.name.split("-")[1] for path in files(folder)] == ["000005", "1000000"]


def test_a_checkpoint_drops_those_of_later_rounds(folder: CheckpointFolder) -> None:
    """They are of a run that was cut back; they must not come after the one that goes on."""
    folder.save(server(9), 9)
    folder.save(server(3), 3)
    assert round_of(folder.load(MANY)) == 3
    assert [path.name.split("-")[1] for path in files(folder)] == ["000002", "000003"]


def test_a_checkpoint_beyond_the_record_is_passed_over(
    folder: CheckpointFolder, caplog: pytest.LogCaptureFixture
) -> None:
    assert round_of(folder.load(2)) == 2
    assert not caplog.records
    assert round_of(folder.load(1)) == 1
    assert "metrics.jsonl holds only 1 whole rounds" in caplog.text
    with pytest.raises(UserError, match=r"metrics\.jsonl: line 1 is damaged or missing"):
        folder.load(0)


def damaged(path: Path, kind: str) -> None:
    content = path.read_bytes()
    match kind:
        case "truncated":
            path.write_bytes(content[: len(content) // 2])
        case "empty":
            path.write_bytes(b"")
        case "flipped":
            path.write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
        case "folder":
            path.unlink()
            path.mkdir()


@pytest.mark.parametrize("kind", ["truncated", "empty", "flipped", "folder"])
def test_a_damaged_newest_checkpoint_falls_back_with_a_warning(
    folder: CheckpointFolder, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    newest = files(folder)[1]
    damaged(newest, kind)
    with caplog.at_level(logging.WARNING):
        assert round_of(folder.load(MANY)) == 1
    assert f"{newest}: damaged checkpoint, trying the one before" in caplog.text
    damaged(files(folder)[0], kind)
    assert folder.load(MANY) is None


@settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_no_damage_is_taken_for_a_checkpoint(folder: CheckpointFolder, data: st.DataObject) -> None:
    first, newest = files(folder)
    content = newest.read_bytes()
    kind = data.draw(st.sampled_from(["cut", "flip", "replace", "grow"]))
    place = data.draw(st.integers(0, len(content) - 1))
    match kind:
        case "cut":
            changed = content[:place]
        case "flip":
            bit = 1 << data.draw(st.integers(0, 7))
            changed = content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :]
        case "grow":
            changed = content + data.draw(st.binary(min_size=1, max_size=9))
        case _:
            changed = data.draw(st.binary(max_size=60))
    newest.write_bytes(changed)
    try:
        assert round_of(folder.load(MANY)) == 1
        # The same content under a digest of its own: a result, or damaged.
        digest = hashlib.blake2b(changed, digest_size=16).hexdigest()
        newest.rename(newest.with_name(f"round-000002-{digest}.safetensors"))
        folder.load(MANY)
    finally:
        for path in files(folder):
            if path != first:
                path.unlink()
        newest.write_bytes(content)


def test_foreign_files_in_the_folder_are_left_alone(folder: CheckpointFolder) -> None:
    for name in ("round-000009.safetensors", "notes.txt", "round-9-abc.safetensors"):
        (folder.path / name).write_text("mine")
    folder.save(server(3), 3)
    assert round_of(folder.load(MANY)) == 3
    assert (folder.path / "notes.txt").read_text() == "mine"
    assert len(files(folder)) == 5
