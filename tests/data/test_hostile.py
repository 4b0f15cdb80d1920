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

from .conftest import refusal

MEMORY = 600_000_000

Png = Callable[..., bytes]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Four images of each of two classes."""
    for label in ("a", "b"):
        (tmp_path / "images" / label).mkdir(parents=True)
        for i in range(4):
            Image.new("L", (8, 8)).save(tmp_path / "images" / label / f"{i}.png")
    return tmp_path / "images"


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[45] ^= 8
    path.write_bytes(content)


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def sixteen_bits(path: Path) -> None:
    Image.fromarray(np.full((8, 8), 40_000, dtype=np.uint16)).save(path)


HOSTILE: dict[str, tuple[Callable[[Path, Png], Any], str]] = {
    "a script": (lambda path, _: path.write_bytes(b"%!PS-Adobe\n"), "neither format"),
    "cut": (lambda path, _: os.truncate(path, 45), ""),
    "flipped": (lambda path, _: flipped(path), ""),
    "a pipe": (lambda path, _: piped(path), "not a regular file"),
    "endless": (lambda path, _: endless(path), "not a regular file"),
    "16 bits": (lambda path, _: sixteen_bits(path), "more than 8 bits a channel"),
    "no pixels": (lambda path, png: path.write_bytes(png(8, 8)), ""),
    "vast": (lambda path, png: path.write_bytes(png(10**6, 10**6)), "decompression bomb"),
    "large": (lambda path, png: path.write_bytes(png(10**4, 10**4)), "decompression bomb"),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("place", "size"), [("0.png", None), ("1.png", None), ("1.png", (2, 2))])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_image_is_one_line(
    images: Path, png: Png, name: str, place: str, size: tuple[int, int] | None
) -> None:
    damage, expected = HOSTILE[name]
    path = images / "a" / place
    damage(path, png)
    message = refusal(load_image_folder, images, images.parent / "cache", size, 0.5, seed=0)
    assert message.startswith(f"{path}: ")
    assert expected in message


def test_more_than_memory_is_refused_before_decoding(
    images: Path, png: Png, monkeypatch: pytest.MonkeyPatch
) -> None:
    (images / "a" / "1.png").write_bytes(png(8, 8))  # damaged, which only its decoding would show
    monkeypatch.setattr(image_files, "MAX_DECODED_BYTES", 8 * 8 * 8 - 1)
    message = refusal(load_image_folder, images, images.parent / "cache", None, 0.5, seed=0)
    assert message.startswith("data_args.image_size: 8 images of 8 x 8 pixels")


@cache
def zeros() -> bytes:
    """More than there is memory for, compressed."""
    return zlib.compress(bytes(MEMORY + 200_000_000), 1)


BOMBS: dict[str, Callable[[Png], bytes]] = {
    "packed zeros": lambda _: gzip.compress(
        struct.pack(">IIII", 0x803, 30, 28, 28) + bytes(MEMORY), 1
    ),
    "fifteen thousand pixels square": lambda png: png(15_000, 15_000, (b"IDAT", zeros())),
    "a profile of packed zeros": lambda png: png(8, 8, (b"iCCP", b"x\0\0" + zeros())),
    "texts of packed zeros": lambda png: png(8, 8, *[(b"zTXt", b"x\0\0" + zeros())] * 3),
}


def load(folder: Path) -> None:
    """Load within little memory beyond what the process has; end with 3 for one line."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    try:
        if (folder / "images").exists():
            load_image_folder(folder / "images", folder, (8, 8), 0.5, 0)
        else:
            load_images("mnist", folder, download=False, seed=0)
    except UserError as error:
        raise SystemExit(3 if str(error).isprintable() else 4) from None


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_in_little_memory(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, png: Png
) -> None:
    content = BOMBS[name](png)
    if content.startswith(b"\x1f\x8b"):
        request.getfixturevalue("tiny_mnist")
        path = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte.gz"
    else:
        path = request.getfixturevalue("images") / "a" / "2.png"
    path.write_bytes(content)
    process = multiprocessing.get_context("fork").Process(target=load, args=(tmp_path,))
    process.start()
    process.join(60)
    assert process.exitcode == 3
