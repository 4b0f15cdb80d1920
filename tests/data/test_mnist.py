"""MNIST's files: compressed or not, missing, damaged."""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from fednnnn_plugin.data.images import ImageDataset
from fednnnn_plugin.data.sets import is_present
from fednnnn_plugin.data.sources import OWN_FOLDER

from .conftest import load_images, refusal, write_idx


def load(folder: Path) -> ImageDataset:
    return load_images("mnist", folder)


def test_mnist_loads_compressed_or_not(tiny_mnist: Path) -> None:
    files = sorted(tiny_mnist.rglob("*"))
    assert is_present("mnist", tiny_mnist)
    before = load(tiny_mnist).pixels
    assert sorted(tiny_mnist.rglob("*")) == files  # nothing is written where the data is
    for path in tiny_mnist.rglob("*.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    after = load(tiny_mnist).pixels
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert before.train_images.shape == (30, 1, 28, 28)
    assert before.train_labels.tolist() == [i % 10 for i in range(30)]
    assert before.test_images.dtype == torch.uint8


def test_mnist_names_its_missing_files(tiny_mnist: Path) -> None:
    path = tiny_mnist / "MNIST" / "raw" / "t10k-labels-idx1-ubyte.gz"
    path.unlink()
    os.mkfifo(path)  # no file either
    message = refusal(load, tiny_mnist)
    assert message.startswith(f"data_cache_dir: {tiny_mnist}: ")
    assert path.stem in message
    assert "train-" not in message
    assert "download: true" in message


@pytest.mark.parametrize("dataset", ["mnist", "cifar10"])
def test_data_folder_that_is_none_is_named(tmp_path: Path, dataset: str) -> None:
    file, loop, gone = tmp_path / "file", tmp_path / "loop", tmp_path / "gone"
    file.touch()
    loop.symlink_to(loop)
    assert refusal(load_images, dataset, file).startswith(f"{file}: ")
    missing = refusal(load_images, dataset, gone)
    assert missing.startswith(f"data_cache_dir: {gone}: ")
    assert not gone.exists()
    assert str(loop) in refusal(load_images, dataset, loop, download=True)
    assert not is_present(dataset, loop)
    (tmp_path / OWN_FOLDER).touch()  # in the way of a download, for root too
    unwritable = refusal(load_images, dataset, tmp_path, download=True)
    assert unwritable.startswith(f"{tmp_path / OWN_FOLDER}: cannot be used: ")


DAMAGES = {
    "longer than it says": lambda whole: whole + b"\0",
    "other elements": lambda whole: bytes([0, 0, 13, 3]) + whole[4:],
    "four billion images": lambda whole: whole[:4] + b"\xff" * 4 + whole[8:],
    "packed: cut": lambda whole: gzip.compress(whole, 1)[:-9],
    "packed: longer than it may be": lambda whole: gzip.compress(whole + bytes(5 * 10**7), 1),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_mnist_file_that_is_damaged_is_named(tiny_mnist: Path, damage: str) -> None:
    path = tiny_mnist / "MNIST" / "raw" / "train-images-idx3-ubyte.gz"
    content = DAMAGES[damage](gzip.decompress(path.read_bytes()))
    if not damage.startswith("packed"):
        path = path.with_suffix("")  # which comes first
    path.write_bytes(content)
    assert refusal(load, tiny_mnist).startswith(f"{path}: ")
    os.truncate(path, 1 << 40)
    assert refusal(load, tiny_mnist).startswith(f"{path}: more than the ")


def test_mnist_files_that_do_not_fit_are_named(tiny_mnist: Path) -> None:
    for name, array, said in (
        ("t10k-images-idx3", np.zeros((20, 28, 27)), "[28, 27]"),
        ("train-labels-idx1", np.zeros(29), "29 labels"),
        ("train-labels-idx1", np.full(30, 10), "label 10 "),
    ):
        write_idx(tiny_mnist / "MNIST" / "raw" / f"{name}-ubyte.gz", array)
        message = refusal(load, tiny_mnist)
        assert message.startswith(f"{tiny_mnist}/MNIST/raw/{name.partition('-')[0]}")
        assert said in message
