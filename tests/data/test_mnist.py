"""MNIST's files: compressed or not, missing, damaged, downloaded."""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from fednnnn_plugin.data.images import ImageDataset
from fednnnn_plugin.data.load import is_present, load_images
from fednnnn_plugin.errors import UserError


def load(folder: Path) -> ImageDataset:
    return load_images("mnist", folder, download=False, seed=0)


def unpack(folder: Path) -> None:
    for path in (folder / "MNIST" / "raw").glob("*.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()


def test_compressed_or_not(tiny_mnist: Path) -> None:
    files = sorted(tiny_mnist.rglob("*"))
    before = load(tiny_mnist).pixels
    assert sorted(tiny_mnist.rglob("*")) == files  # nothing is written where the data is
    unpack(tiny_mnist)
    after = load(tiny_mnist).pixels
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert before.train_images.shape == (30, 1, 28, 28)
    assert before.train_labels.tolist() == [i % 10 for i in range(30)]
    assert before.test_images.dtype == torch.uint8


def test_missing_files_are_named(tiny_mnist: Path) -> None:
    (tiny_mnist / "MNIST" / "raw" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(UserError, match=f"^{tiny_mnist}: .* t10k-labels-idx1-ubyte ") as refused:
        load(tiny_mnist)
    assert "train-" not in str(refused.value)
    assert "download: true" in str(refused.value)


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    file, loop = tmp_path / "file", tmp_path / "loop"
    file.touch()
    loop.symlink_to(loop)
    for dataset in ("mnist", "cifar10"):
        with pytest.raises(UserError, match=f"^{file}: not a folder$"):
            load_images(dataset, file, download=False, seed=0)
        with pytest.raises(UserError, match=f"^{tmp_path / 'gone'}: no .* looked for"):
            load_images(dataset, tmp_path / "gone", download=False, seed=0)
        with pytest.raises(UserError, match=f"^{loop}"):
            load_images(dataset, loop, download=True, seed=0)
        assert not (tmp_path / "gone").exists()
        assert not is_present(dataset, loop)


def test_a_folder_that_cannot_be_read(tiny_mnist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "is_file", refuse)  # root, as tests may run, may read everything
    with pytest.raises(UserError, match=f"^{tiny_mnist}.*: cannot be used: Permission denied$"):
        load(tiny_mnist)
    assert not is_present("mnist", tiny_mnist)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("train-labels-idx1", np.zeros(29), "29 labels"),
        ("train-labels-idx1", np.full(30, 10), "label 10 "),
        ("t10k-images-idx3", np.zeros((20, 28, 27)), r"\[28, 27\]"),
        ("t10k-images-idx3", np.zeros((0, 28, 28)), "images-idx3"),
        ("train-images-idx3", np.zeros(30), "dimension"),
        ("train-labels-idx1", np.zeros((30, 1)), "dimension"),
    ],
)
def test_what_does_not_fit(tiny_mnist: Path, write_idx, name: str, array, message: str) -> None:
    write_idx(tiny_mnist / "MNIST" / "raw" / f"{name}-ubyte.gz", array)
    part = name.partition("-")[0]
    with pytest.raises(UserError, match=f"^{tiny_mnist}/MNIST/raw/{part}.*{message}") as refused:
        load(tiny_mnist)
    assert str(refused.value).isprintable()


HEADER = bytes([0, 0, 8, 3])
DAMAGES = {
    "empty": lambda whole: b"",
    "text": lambda whole: b"no images",
    "cut": lambda whole: whole[: len(whole) // 2],
    "longer than it says": lambda whole: whole + b"\0",
    "other elements": lambda whole: bytes([0, 0, 13, 3]) + whole[4:],
    "unknown elements": lambda whole: bytes([0, 0, 10, 3]) + whole[4:],
    "four billion images": lambda whole: HEADER + b"\xff" * 4 + whole[8:],
    "endless rows": lambda whole: whole[:8] + b"\x7f\xff\xff\xff" * 2 + whole[16:],
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("packed", [True, False])
def test_a_damaged_file_is_named(tiny_mnist: Path, damage: str, packed: bool) -> None:
    if not packed:
        unpack(tiny_mnist)
    name = "train-images-idx3-ubyte" + (".gz" if packed else "")
    path = tiny_mnist / "MNIST" / "raw" / name
    whole = path.read_bytes()
    content = DAMAGES[damage](gzip.decompress(whole) if packed else whole)
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(UserError, match=f"^{path}: ") as refused:
        load(tiny_mnist)
    assert str(refused.value).isprintable()


def test_a_damaged_compression_a_bomb_and_what_never_ends(tiny_mnist: Path) -> None:
    path = tiny_mnist / "MNIST" / "raw" / "t10k-labels-idx1-ubyte.gz"
    whole = path.read_bytes()
    for content in (b"", b"no archive", whole[:-9], whole[:-8] + b"\0\0\0\0" + whole[-4:]):
        path.write_bytes(content)
        with pytest.raises(UserError, match=f"^{path}: "):
            load(tiny_mnist)
    path.write_bytes(gzip.compress(gzip.decompress(whole) + bytes(10**8)))
    with pytest.raises(UserError, match=f"^{path}: "):
        load(tiny_mnist)
    os.truncate(path, 1 << 40)
    with pytest.raises(UserError, match=f"^{path}: more than the "):
        load(tiny_mnist)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UserError, match="no MNIST here: looked for t10k-labels"):
        load(tiny_mnist)


@pytest.mark.real_data
def test_the_mean_and_deviation_are_those_of_the_real_files(real_data_dir: Path) -> None:
    dataset = load(real_data_dir)
    assert torch.bincount(dataset.pixels.test_labels).tolist() == [
        980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009,
    ]  # fmt: skip
    scaled = dataset.pixels.train_images.double() / 255
    assert scaled.mean().item() == pytest.approx(dataset.mean[0], abs=1e-5)
    assert scaled.std(correction=0).item() == pytest.approx(dataset.std[0], abs=1e-5)
