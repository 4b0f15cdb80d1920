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
    before = load(tiny_mnist).parts
    assert sorted(tiny_mnist.rglob("*")) == files  # nothing is written where the data is
    for path in tiny_mnist.rglob("*.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    after = load(tiny_mnist).parts
    assert after.digest() == before.digest()
    drawn = np.random.default_rng(0).integers(0, 256, (30, 28, 28))
    assert before.train.inputs[:, 0].tolist() == drawn.tolist()
    moments = load(tiny_mnist).mean[0] / 255, load(tiny_mnist).std[0] / 255
    assert moments == pytest.approx((0.1307, 0.3081), abs=5e-5)
    assert before.train.inputs.shape == (30, 1, 28, 28)
    assert before.train.labels.tolist() == [i % 10 for i in range(30)]
    assert before.test.inputs.dtype == torch.uint8
    path = tiny_mnist / "MNIST" / "raw" / "t10k-labels-idx1-ubyte"
    path.unlink()
    os.mkfifo(path)  # no file either
    message = refusal(load, tiny_mnist)
    assert message.startswith(f"data_cache_dir: {tiny_mnist}: ")
    assert path.name in message
    assert "train-" not in message


@pytest.mark.parametrize("dataset", ["mnist", "cifar10"])
def test_data_folder_that_is_none_is_named(tmp_path: Path, dataset: str) -> None:
    file, loop, gone = tmp_path / "file", tmp_path / "loop", tmp_path / "gone"
    file.touch()
    loop.symlink_to(loop)
    assert refusal(load_images, dataset, file).startswith(f"{file}: ")
    assert refusal(load_images, dataset, gone).startswith(f"data_cache_dir: {gone}: ")
    assert not gone.exists()
    assert str(loop) in refusal(load_images, dataset, loop, download=True)
    assert not is_present(dataset, loop)
    (tmp_path / OWN_FOLDER).touch()  # in the way of a download, for root too
    unwritable = refusal(load_images, dataset, tmp_path, download=True)
    assert unwritable.startswith(f"{tmp_path / OWN_FOLDER}: ")


def test_mnist_file_that_is_damaged_is_named(tiny_mnist: Path) -> None:
    packed = tiny_mnist / "MNIST" / "raw" / "train-images-idx3-ubyte.gz"
    whole = gzip.decompress(packed.read_bytes())
    plain = packed.with_suffix("")  # which comes first
    for path, content in (
        (packed, gzip.compress(whole, 1)[:-9]),
        (packed, gzip.compress(whole + bytes(5 * 10**7), 1)),  # longer than it may be
        (plain, whole + b"\0"),
        (plain, bytes([0, 0, 13, 3]) + whole[4:]),  # other elements
        (plain, whole[:4] + b"\xff" * 4 + whole[8:]),  # four billion images
    ):
        path.write_bytes(content)
        assert refusal(load, tiny_mnist).startswith(f"{path}: ")
    os.truncate(plain, 1 << 40)
    assert refusal(load, tiny_mnist).startswith(f"{plain}: ")
    plain.unlink()
    for name, array in (
        ("train-images-idx3", np.zeros((30, 28, 27))),
        ("train-labels-idx1", np.zeros(29)),
        ("train-labels-idx1", np.full(30, 10)),
    ):
        write_idx(packed, np.zeros((30, 28, 28)))
        write_idx(packed.with_name(f"{name}-ubyte.gz"), array)
        assert refusal(load, tiny_mnist).startswith(f"{packed.parent}/train")
