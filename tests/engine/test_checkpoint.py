"""Checkpoints: the newest whole one, whatever happened to the others."""

import hashlib
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fednnnn_plugin.engine.checkpoint import CheckpointFolder
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


def kept(folder: CheckpointFolder) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in files(folder))


def loaded(folder: CheckpointFolder, recorded: int = MANY) -> int | None:
    """The round of the checkpoint that is loaded, which is as it was saved."""
    checkpoint = folder.load(recorded)
    if checkpoint is None:
        return None
    saved = server(checkpoint.round)
    assert checkpoint.server.keys() == saved.keys()
    for name, tensor in saved.items():
        assert torch.equal(checkpoint.server[name], tensor)
        assert checkpoint.server[name].dtype == tensor.dtype
    return checkpoint.round


def test_checkpoints_of_the_newest_two_rounds_are_kept(folder: CheckpointFolder) -> None:
    """Those are of a run that was cut back; they must not come after the one that goes on."""
    for number, left in ((5, [2, 5]), (1_000_000, [5, 1_000_000]), (3, [3]), (4, [3, 4])):
        folder.save(server(number), number)
        assert loaded(folder) == number
        assert kept(folder) == left


def test_checkpoint_beyond_the_record_is_passed_over(
    folder: CheckpointFolder, caplog: pytest.LogCaptureFixture
) -> None:
    assert loaded(folder, 2) == 2
    assert not caplog.records
    assert loaded(folder, 1) == 1
    assert "metrics.jsonl holds only 1 whole rounds" in caplog.text
    with pytest.raises(UserError, match=r"metrics\.jsonl: line 1 is damaged or missing"):
        folder.load(0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(start=st.integers(0, 300), length=st.integers(0, 300), new=st.binary(max_size=60))
def test_checkpoint_with_any_damage_is_passed_over(
    folder: CheckpointFolder, start: int, length: int, new: bytes
) -> None:
    first, newest = files(folder)
    content = newest.read_bytes()
    changed = content[:start] + new + content[start + length :]
    newest.write_bytes(changed)
    try:
        assert loaded(folder) == (2 if changed == content else 1)
        # The same content under a digest of its own: a result, or damaged.
        digest = hashlib.blake2b(changed, digest_size=16).hexdigest()
        newest.rename(newest.with_name(f"round-000002-{digest}.safetensors"))
        folder.load(MANY)
    finally:
        for path in files(folder):
            if path != first:
                path.unlink()
        newest.write_bytes(content)


def test_checkpoint_folder_leaves_foreign_files_alone(folder: CheckpointFolder) -> None:
    foreign = [
        folder.path / name for name in ("round-000009.safetensors", "round-9-abc.safetensors")
    ]
    for path in foreign:
        path.write_text("mine")
    folder.save(server(3), 3)
    assert loaded(folder) == 3
    assert [path.read_text() for path in foreign] == ["mine"] * 2
