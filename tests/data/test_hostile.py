"""Images that are damaged, never end, or unpack to far more than they are: one line each."""

import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fednnnn_plugin.data import image_files
from fednnnn_plugin.data.image_folder import load_image_folder

from .conftest import refusal


def png(width: int, height: int) -> bytes:
    """A file that claims a width and a height, and has no pixels."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [struct.pack(">I", 13), header, struct.pack(">I", zlib.crc32(header))]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts) + b"\0\0\0\0IEND\xaeB`\x82"


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
