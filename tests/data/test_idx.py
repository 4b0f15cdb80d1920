import gzip
import os
import struct
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fednnnn_plugin.data.idx import read_idx
from fednnnn_plugin.errors import UserError


def idx_bytes(dimensions: list[int], body: bytes, kind: int = 8) -> bytes:
    header = bytes([0, 0, kind, len(dimensions)])
    return header + struct.pack(f">{len(dimensions)}I", *dimensions) + body


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_by_hand(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"images-idx3-ubyte{suffix}"
    content = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2]) + bytes([1, 2, 3, 255])
    path.write_bytes(gzip.compress(content) if suffix else content)
    expected = torch.tensor([[[1, 2]], [[3, 255]]], dtype=torch.uint8)
    assert torch.equal(read_idx(path, (1, 2), most=2), expected)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "starts with"),
        (bytes(2), "starts with"),
        (idx_bytes([2], b"ab")[:7], "starts with '00 00 08 01', not"),
        (idx_bytes([2, 1], b"ab"), "starts with '00 00 08 02', not '00 00 08 01'"),
        (idx_bytes([2], b"ab", kind=9), "starts with '00 00 09 01'"),
        (idx_bytes([0], b""), r"holds \[0\], not at most \[5\]"),
        (idx_bytes([6], b"abcdef"), r"holds \[6\], not at most \[5\]"),
        (idx_bytes([4_000_000_000], b"ab"), r"holds \[4000000000\]"),
        (idx_bytes([3], b"ab"), "truncated"),
        (idx_bytes([3], b"abcd"), "longer than its header says"),
    ],
)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_wrong_file_is_one_line(
    tmp_path: Path, content: bytes, problem: str, suffix: str
) -> None:
    path = tmp_path / f"labels{suffix}"
    path.write_bytes(gzip.compress(content) if suffix else content)
    with pytest.raises(UserError, match=f"^{path}: not a readable IDX file: {problem}") as refused:
        read_idx(path, (), most=5)
    assert "\n" not in str(refused.value)


def test_damaged_compression(tmp_path: Path) -> None:
    path = tmp_path / "labels.gz"
    whole = gzip.compress(idx_bytes([5], b"abcde"))
    for broken in (whole[:-6], whole[:15], whole[:-8] + b"\0\0\0\0" + whole[-4:], b"no gzip"):
        path.write_bytes(broken)
        with pytest.raises(UserError, match=f"^{path}: not a readable IDX file: "):
            read_idx(path, (), most=5)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(bit=st.integers(0, 8 * 90 - 1), cut=st.integers(0, 90))
def test_flipped_or_cut_compressed_files_never_give_other_data(
    tmp_path: Path, bit: int, cut: int
) -> None:
    labels = np.random.default_rng(0).integers(0, 10, 60).astype(np.uint8)
    content = bytearray(gzip.compress(idx_bytes([60], labels.tobytes()), mtime=0))
    content[bit // 8 % len(content)] ^= 1 << bit % 8
    path = tmp_path / "labels.gz"
    for damaged in (bytes(content), bytes(content[:cut])):
        path.write_bytes(damaged)
        try:
            assert read_idx(path, (), most=60).tolist() == labels.tolist()
        except UserError:
            continue


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "images.gz"
    with gzip.open(path, "wb", compresslevel=9) as file:
        file.write(idx_bytes([2, 28, 28], b""))
        for _ in range(200):
            file.write(bytes(1 << 20))
    tracemalloc.start()
    start = time.process_time()
    with pytest.raises(UserError, match="longer than its header says"):
        read_idx(path, (28, 28), most=60_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10e6
    assert time.process_time() - start < 1


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    pipe, folder, gone = tmp_path / "pipe", tmp_path / "folder", tmp_path / "gone"
    os.mkfifo(pipe)
    folder.mkdir()
    for path, problem in (
        (pipe, "not a regular file"),
        (folder, "not a regular file"),
        (Path("/dev/zero"), "not a regular file"),
        (gone, "No such file"),
    ):
        with pytest.raises(UserError, match=f"^{path}: .*{problem}"):
            read_idx(path, (), most=5)
