"""Data files that claim or unpack to far more than they are: one line, in bounded memory."""

import gzip
import multiprocessing
import resource
import struct
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from PIL import Image

from fednnnn_plugin.data.image_folder import load_image_folder
from fednnnn_plugin.data.load import load_images
from fednnnn_plugin.errors import UserError

MEMORY = 600_000_000


def idx(*dimensions: int, body: bytes = b"") -> bytes:
    header = bytes([0, 0, 8, len(dimensions)])
    return header + struct.pack(f">{len(dimensions)}I", *dimensions) + body


def png(width: int, height: int, *chunks: tuple[bytes, bytes]) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", header), *chunks, (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


def load(folder: Path, dataset: str) -> None:
    """Load within a gigabyte beyond what the process has; end with 3 for one line of a refusal."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    try:
        if dataset == "mnist":
            load_images("mnist", folder, download=False, seed=0)
        else:
            load_image_folder(folder / "images", folder, (8, 8), 0.5, 0)
    except UserError as error:
        raise SystemExit(3 if str(error).isprintable() else 4) from None


@cache
def zeros() -> bytes:
    """More than there is memory for, compressed."""
    return zlib.compress(bytes(MEMORY + 200_000_000), 1)


BOMBS: dict[str, Callable[[], bytes]] = {
    "mnist: four billion images": lambda: idx(2**32 - 1, 28, 28),
    "mnist: endless rows": lambda: idx(20, 2**31, 2**31),
    "mnist: packed zeros": lambda: gzip.compress(idx(30, 28, 28) + bytes(MEMORY), 1),
    "images: a million pixels square": lambda: png(10**6, 10**6),
    "images: the largest there is": lambda: png(2**31 - 1, 2**31 - 1),
    "images: fifteen thousand pixels square": lambda: png(15_000, 15_000, (b"IDAT", zeros())),
    "images: a profile of packed zeros": lambda: png(32, 32, (b"iCCP", b"x\0\0" + zeros())),
    "images: texts of packed zeros": lambda: png(32, 32, *[(b"zTXt", b"x\0\0" + zeros())] * 3),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_in_little_memory(name: str, tiny_mnist: Path) -> None:
    dataset = name.partition(":")[0]
    content = BOMBS[name]()
    path = tiny_mnist / "MNIST" / "raw" / "train-images-idx3-ubyte"
    if dataset == "images":
        for label in ("a", "b"):
            (tiny_mnist / "images" / label).mkdir(parents=True)
            for i in range(4):
                Image.new("L", (8, 8)).save(tiny_mnist / "images" / label / f"{i}.png")
        path = tiny_mnist / "images" / "a" / "2.png"
    elif content.startswith(b"\x1f\x8b"):
        path = path.with_name(f"{path.name}.gz")
    path.write_bytes(content)
    process = multiprocessing.get_context("fork").Process(target=load, args=(tiny_mnist, dataset))
    process.start()
    process.join(60)
    assert process.exitcode == 3
