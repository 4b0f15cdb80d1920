import logging
import multiprocessing
import os
import time
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from fednnnn_plugin.data.cache import FOLDER, DecodedCache
from fednnnn_plugin.data.images import Pixels

SHAPE = (1, 2, 2)


def some_pixels(value: int = 7) -> Pixels:
    images = torch.full((3, *SHAPE), value, dtype=torch.uint8)
    labels = torch.tensor([0, 1, 2])
    return Pixels(images, labels, images[:2].clone(), labels[:2].clone())


class Decoder:
    """Counts how often it decodes."""

    def __init__(self, value: int = 7) -> None:
        self.value, self.calls = value, 0

    def __call__(self) -> Pixels:
        self.calls += 1
        return some_pixels(self.value)


def same(a: Pixels, b: Pixels) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.fixture
def cache(tmp_path: Path) -> DecodedCache:
    return DecodedCache(tmp_path, "tiny", SHAPE, num_classes=3)


@pytest.fixture
def stored(cache: DecodedCache) -> Path:
    cache.get("first", Decoder())
    return cache.data_folder / FOLDER / "tiny.safetensors"


def test_decodes_once(cache: DecodedCache, stored: Path) -> None:
    again = Decoder()
    assert same(cache.get("first", again), some_pixels())
    assert again.calls == 0
    assert sorted(path.name for path in stored.parent.iterdir()) == [
        "tiny.lock",
        "tiny.safetensors",
    ]


def test_other_sources_are_decoded_again(cache: DecodedCache, stored: Path) -> None:
    changed = Decoder(8)
    for _ in range(2):
        assert same(cache.get("second", changed), some_pixels(8))
    assert changed.calls == 1
    assert stored.exists()


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 4
    path.write_bytes(content)


def with_tensors(path: Path, **changed: torch.Tensor) -> None:
    """A well-formed file with the right marks and other content."""
    with safe_open(path, framework="pt") as file:
        marks = file.metadata()
    save_file(some_pixels()._asdict() | changed, path, metadata=marks)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes()[:100]),
        lambda path: path.write_bytes(b"\xff" * 8 + path.read_bytes()[8:]),
        lambda path: flip(path, -1),
        lambda path: flip(path, -30),
        lambda path: flip(path, 20),
        lambda path: os.truncate(path, 1 << 40),
        lambda path: save_file({"other": torch.zeros(1)}, path),
        lambda path: with_tensors(path, train_images=torch.zeros(3, *SHAPE)),
        lambda path: with_tensors(path, test_labels=torch.tensor([0, 3])),
        lambda path: with_tensors(path, train_labels=torch.tensor([1, 1, 2])),
        lambda path: (path.unlink(), path.mkdir()),
    ],
)
def test_a_damaged_cache_is_noticed(cache: DecodedCache, stored: Path, damage) -> None:
    damage(stored)
    decoder = Decoder()
    assert same(cache.get("first", decoder), some_pixels())
    assert decoder.calls == 1


def test_a_damaged_cache_is_mended(cache: DecodedCache, stored: Path) -> None:
    flip(stored, -1)
    cache.get("first", Decoder())
    decoder = Decoder()
    cache.get("first", decoder)
    assert decoder.calls == 0


def test_a_folder_that_cannot_be_written_to(tmp_path: Path, cache: DecodedCache) -> None:
    (tmp_path / FOLDER).touch()  # in the way, for root too
    decoder = Decoder()
    for _ in range(2):
        assert same(cache.get("first", decoder), some_pixels())
    assert decoder.calls == 2


@pytest.mark.parametrize("left_over", [None, b"half a file"])
def test_an_interrupted_write_leaves_no_cache(
    cache: DecodedCache,
    tmp_path: Path,
    left_over: bytes | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    partial = tmp_path / FOLDER / "tiny.partial"
    if left_over:  # of a process that was killed
        partial.parent.mkdir()
        partial.write_bytes(left_over)

    def disk_full(*_: object, **__: object) -> None:
        partial.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr("fednnnn_plugin.data.cache.save_file", disk_full)
        assert same(cache.get("first", Decoder()), some_pixels())
    assert "No space left" in caplog.text
    assert not partial.exists()
    decoder = Decoder()
    cache.get("first", decoder)
    cache.get("first", decoder)
    assert decoder.calls == 1


def _load_slowly(folder: Path) -> None:
    def decode() -> Pixels:
        with (folder / "decoded").open("a") as file:
            file.write("x")
        time.sleep(0.5)
        return some_pixels()

    cache = DecodedCache(folder, "tiny", SHAPE, num_classes=3)
    assert same(cache.get("first", decode), some_pixels())


def test_of_several_processes_one_decodes(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_load_slowly, args=(tmp_path,)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
        assert process.exitcode == 0
    assert (tmp_path / "decoded").read_text() == "x"


def test_a_lock_of_a_killed_process_does_not_hold(tmp_path: Path, cache: DecodedCache) -> None:
    def hold() -> None:
        with cache.locked():
            (tmp_path / "held").touch()
            time.sleep(60)

    process = multiprocessing.get_context("fork").Process(target=hold)
    process.start()
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    process.kill()
    process.join()
    start = time.monotonic()
    cache.get("first", Decoder())
    assert time.monotonic() - start < 5
