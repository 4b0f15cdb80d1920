"""Data files that are damaged, never end, or unpack to far more than they are: one line each."""

import gzip
import multiprocessing
import os
import resource
import struct
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fednnnn_plugin.data import image_files
from fednnnn_plugin.data.image_folder import load_image_folder
from fednnnn_plugin.data.load import load_images
from fednnnn_plugin.errors import UserError

from .conftest import png, refusal

MEMORY = 600_000_000


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Four images of each of two classes."""
    for label in ("a", "b"):
        (tmp_path / "images" / label).mkdir(parents=True)
        for i in range(4):
            Image.new("L", (8, 8)).save(tmp_path / "images" / label / f"{i}.png")
    return tmp_path / "images"


SIXTEEN_BITS = Image.fromarray(np.full((8, 8), 40_000, dtype=np.uint16))
HOSTILE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a script": (lambda path: path.write_bytes(b"%!PS-Adobe\n"), "neither format"),
    "cut": (lambda path: os.truncate(path, 45), ""),
    "a pipe": (lambda path: [path.unlink(), os.mkfifo(path)], "not a regular file"),
    "endless": (
        lambda path: [path.unlink(), path.symlink_to("/dev/zero")],
        "not a regular file",
    ),
    "16 bits": (SIXTEEN_BITS.save, "more than 8 bits a channel"),
    "no pixels": (lambda path: path.write_bytes(png(8, 8)), ""),
    "vast": (lambda path: path.write_bytes(png(10**6, 10**6)), "decompression bomb"),
    "large": (lambda path: path.write_bytes(png(10**4, 10**4)), "decompression bomb"),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("place", "size"), [("0.png", None), ("1.png", (2, 2))])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_image_is_one_line(
    images: Path, name: str, place: str, size: tuple[int, int] | None
) -> None:
    damage, expected = HOSTILE[name]
    damage(images / "a" / place)
    message = refusal(load_image_folder, images, images.parent / "cache", size, 0.5, seed=0)
    assert message.startswith(f"{images / 'a' / place}: ")
    assert expected in message


def test_more_than_memory_is_refused_before_decoding(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (images / "a" / "1.png").write_bytes(png(8, 8))  # damaged, which only its decoding would show
    monkeypatch.setattr(image_files, "MAX_DECODED_BYTES", 8 * 8 * 8 - 1)
    message = refusal(load_image_folder, images, images.parent / "cache", None, 0.5, seed=0)
    assert message.startswith("data_args.image_size: 8 images of 8 x 8 pixels")


@cache
def zeros() -> bytes:
    """More than there is memory for, compressed."""
    return zlib.compress(bytes(MEMORY + 200_000_000), 1)


BOMBS: dict[str, Callable[[], bytes]] = {
    "packed zeros": lambda: gzip.compress(struct.pack(">4I", 0x803, 30, 28, 28) + bytes(MEMORY), 1),
    "fifteen thousand pixels square": lambda: png(15_000, 15_000, (b"IDAT", zeros())),
    "a profile of packed zeros": lambda: png(8, 8, (b"iCCP", b"x\0\0" + zeros())),
    "texts of packed zeros": lambda: png(8, 8, *[(b"zTXt", b"x\0\0" + zeros())] * 3),
}


def load(folder: Path, dataset: str) -> None:
    """Load within little memory beyond what the process has; end with 3 for one line."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    try:
        if dataset == "images":
            load_image_folder(folder / "images", folder, (8, 8), 0.5, 0)
        else:
            load_images("mnist", folder, download=False, seed=0)
    except UserError as error:
        raise SystemExit(3 if str(error).isprintable() else 4) from None


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_in_little_memory(name: str, images: Path, tiny_mnist: Path) -> None:
    dataset = "mnist" if name == "packed zeros" else "images"
    path = tiny_mnist / "MNIST" / "raw" / "train-images-idx3-ubyte.gz"
    if dataset == "images":
        path = images / "a" / "2.png"
    path.write_bytes(BOMBS[name]())
    process = multiprocessing.get_context("fork").Process(target=load, args=(tiny_mnist, dataset))
    process.start()
    process.join(60)
    assert process.exitcode == 3
