"""Small files made as the official ones are."""

import gzip
import io
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

WriteIdx = Callable[[Path, np.ndarray], Path]
MakeArchive = Callable[[dict[str, bytes]], bytes]
MakeBatch = Callable[..., bytes]


def _write_idx(path: Path, array: np.ndarray) -> Path:
    content = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    content += array.astype(np.uint8).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.fixture
def write_idx() -> WriteIdx:
    return _write_idx


@pytest.fixture
def tiny_mnist(tmp_path: Path) -> Path:
    """A data folder with 30 training and 20 test images in MNIST's layout, compressed."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 30), ("t10k", 20)):
        raw = tmp_path / "MNIST" / "raw"
        images = rng.integers(0, 256, (count, 28, 28))
        _write_idx(raw / f"{part}-images-idx3-ubyte.gz", images)
        _write_idx(raw / f"{part}-labels-idx1-ubyte.gz", np.arange(count) % 10)
    return tmp_path


def _string(text: bytes) -> bytes:
    """A Python 2 string, as protocol 2 writes it."""
    short = len(text) < 256
    return (b"U" + bytes([len(text)]) if short else b"T" + struct.pack("<I", len(text))) + text


def _number(value: int) -> bytes:
    return b"K" + bytes([value]) if value < 256 else b"M" + struct.pack("<H", value)


def _batch(images: np.ndarray, labels: list[int], by_column: bool = False) -> bytes:
    """A pickle with the instructions of the official batches, which Python 2 wrote.

    Args:
        images: uint8 [n, 3072].
        labels: n of them.
        by_column: store the array in Fortran's order.
    """
    rows, columns = images.shape
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x05"
        b"cnumpy\nndarray\nq\x06" + b"K\x00\x85q\x07" + _string(b"b") + b"q\x08\x87q\x09Rq\x0a"
        b"(K\x01" + _number(rows) + _number(columns) + b"\x86q\x0b"
        b"cnumpy\ndtype\nq\x0c" + _string(b"u1") + b"K\x00K\x01\x87q\x0dRq\x0e"
        b"(K\x03"
        + _string(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\x0fb"
        + (b"\x88" if by_column else b"\x89")
        + _string(images.tobytes("F" if by_column else "C"))
        + b"tq\x10b"
    )
    names = b"".join(
        _string(b"%04d.png" % i) + b"r" + struct.pack("<I", 256 + i) for i in range(rows)
    )
    return (
        b"\x80\x02}q\x01("
        + (_string(b"batch_label") + b"q\x02" + _string(b"training batch 1 of 5"))
        + (_string(b"labels") + b"q\x03]q\x04(" + b"".join(map(_number, labels)) + b"e")
        + (_string(b"data") + array)
        + (_string(b"filenames") + b"]q\x11(" + names + b"e")
        + b"u."
    )


def _archive(batches: dict[str, bytes]) -> bytes:
    """The batches, and a file of no interest, in a compressed archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in {"batches.meta": b"not read", **batches}.items():
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture
def make_archive() -> MakeArchive:
    return _archive


@pytest.fixture
def make_batch() -> MakeBatch:
    return _batch


@pytest.fixture
def tiny_batches() -> dict[str, bytes]:
    """The six batches, of 4 images each; image i of batch b is filled with 10 b + i."""
    batches = {}
    for b, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        images = np.repeat(np.arange(4, dtype=np.uint8)[:, None] + 10 * b, 3072, axis=1)
        batches[name] = _batch(images, [(b + i) % 10 for i in range(4)])
    return batches


@pytest.fixture
def tiny_archive(tiny_batches: dict[str, bytes]) -> bytes:
    return _archive(tiny_batches)
