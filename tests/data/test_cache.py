"""Decoded images on disk: decoded once, in bounds, whole or not there."""

import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import DEFAULT, Mock

import pytest
import torch
from safetensors.torch import save_file

from fednnnn_plugin.data import cache
from fednnnn_plugin.data.cache import cached
from fednnnn_plugin.data.sources import OWN_FOLDER


def new_decoder(value: int = 7) -> Mock:
    """Take a while to decode, and count how often."""
    images = torch.full((3, 1, 2, 2), value, dtype=torch.uint8)
    return Mock(side_effect=lambda: time.sleep(0.02) or DEFAULT, return_value=images)


def get(folder: Path, decoder: Mock, key: str = "first") -> Path:
    assert torch.equal(cached(folder, key, 3, decoder), decoder.return_value)
    return folder / OWN_FOLDER / f"{key}.safetensors"


def test_cache_decodes_once_for_each_fingerprint(tmp_path: Path) -> None:
    first, other = new_decoder(), new_decoder(8)
    with ThreadPoolExecutor(4) as threads:
        assert len(list(threads.map(lambda _: get(tmp_path, first), range(4)))) == 4
    for _ in range(2):
        path = get(tmp_path, other, "second")
    assert (first.call_count, other.call_count) == (1, 1)
    kept = {path.name for path in path.parent.iterdir()} - {"lock"}
    assert kept == {"first.safetensors", "second.safetensors"}


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: os.truncate(path, 1 << 40),
        lambda path: save_file({"images": torch.zeros(3, 1, 2, 2)}, path),
        lambda path: save_file({"images": torch.zeros(2, 1, 2, 2, dtype=torch.uint8)}, path),
        lambda path: [path.unlink(), os.mkfifo(path)],
    ],
)
def test_cache_mends_a_damaged_file(tmp_path: Path, damage) -> None:
    damage(get(tmp_path, new_decoder()))
    decoder = new_decoder()
    for _ in range(2):
        get(tmp_path, decoder)
    assert decoder.call_count == 1


def test_cache_drops_what_was_used_longest_ago(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for age, name in ((3, "first"), (2, "second"), (1, "third")):
        path = get(tmp_path, new_decoder(), name)
        os.utime(path, (time.time() - 100 * age,) * 2)
    get(tmp_path, new_decoder(), "first")  # used again
    monkeypatch.setattr(cache, "MAX_BYTES", 2 * path.stat().st_size + 12)  # the new one has 12
    get(tmp_path, new_decoder(), "fourth")
    kept = {path.stem for path in path.parent.glob("*.safetensors")}
    assert kept == {"first", "third", "fourth"}


def test_cache_that_keeps_nothing_decodes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    partial = tmp_path / "a" / OWN_FOLDER / "partial"

    def disk_full(*_: object, **__: object) -> None:
        partial.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    decoder = new_decoder()
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(cache, "save_file", disk_full)
        path = get(tmp_path / "a", decoder)
    assert "No space left" in caplog.text
    assert {path.name for path in path.parent.iterdir()} == {"lock"}
    (tmp_path / OWN_FOLDER).touch()  # in the way, for root too
    for _ in range(2):
        get(tmp_path, decoder)
    assert decoder.call_count == 3
