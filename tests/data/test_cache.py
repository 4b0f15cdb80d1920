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


def new_decoder() -> Mock:
    """Take a while to decode, and count how often."""
    images = torch.full((3, 1, 2, 2), 7, dtype=torch.uint8)
    return Mock(side_effect=lambda: time.sleep(0.02) or DEFAULT, return_value=images)


def get(folder: Path, decoder: Mock, key: str = "first") -> Path:
    assert torch.equal(cached(folder, key, 3, decoder), decoder.return_value)
    return folder / OWN_FOLDER / f"{key}.safetensors"


def test_cache_decodes_once_until_damaged(tmp_path: Path) -> None:
    decoder = new_decoder()
    with ThreadPoolExecutor(4) as threads:
        path, *_ = threads.map(lambda _: get(tmp_path, decoder), range(4))
    assert decoder.call_count == 1
    for count, damage in enumerate(
        (
            lambda: os.truncate(path, 1 << 40),
            lambda: save_file({"images": torch.zeros(3, 1, 2, 2)}, path),
            lambda: save_file({"images": torch.zeros(2, 1, 2, 2, dtype=torch.uint8)}, path),
            lambda: [path.unlink(), os.mkfifo(path)],
        )
    ):
        damage()
        for _ in range(2):
            get(tmp_path, decoder)
        assert decoder.call_count == count + 2


def test_cache_drops_what_was_used_longest_ago(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = new_decoder()
    for age, name in ((3, "first"), (2, "second"), (1, "third")):
        path = get(tmp_path, decoder, name)
        os.utime(path, (time.time() - 100 * age,) * 2)
    get(tmp_path, decoder, "first")  # used again
    assert decoder.call_count == 3
    monkeypatch.setattr(cache, "MAX_BYTES", 2 * path.stat().st_size + 12)  # the new one has 12
    get(tmp_path, decoder, "fourth")
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
