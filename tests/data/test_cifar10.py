"""CIFAR-10 in its three forms, whole, missing and damaged."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fednnnn_plugin.data.images import ImageDataset
from fednnnn_plugin.data.sets import is_present
from fednnnn_plugin.data.sets.cifar10 import CLASSES
from fednnnn_plugin.data.sources import OWN_FOLDER

from .conftest import load_images, refusal

ARCHIVE = "cifar-10-python.tar.gz"


def load(folder: Path) -> ImageDataset:
    return load_images("cifar10", folder)


def write_tree(folder: Path, suffix: str = "png", name: str = "CIFAR-10-images") -> Path:
    """Two training images and one test image a class; pixel value 20 c + 5 i + (1 if test)."""
    tree = folder / name
    for part, count in (("train", 2), ("test", 1)):
        for c, label in enumerate(CLASSES):
            (tree / part / label).mkdir(parents=True)
            for i in range(count):
                value = 20 * c + 5 * i + (part == "test")
                image = Image.new("RGB", (32, 32), (value, 255 - value, 7))
                image.save(tree / part / label / f"{i:04d}.{suffix}", quality=95)
    return tree


def check_tiny_batches(folder: Path) -> None:
    """Load the images of ``tiny_batches``: image i of batch b is filled with 10 b + i."""
    dataset = load(folder)
    pixels = dataset.parts
    assert dataset.class_names == CLASSES
    assert pixels.train.inputs.shape == (20, 3, 32, 32)
    assert pixels.train.inputs.is_contiguous()
    b, i = np.divmod(np.arange(20), 4)
    assert pixels.train.inputs[:, 2, 31, 31].tolist() == (10 * b + i).tolist()
    marked = (pixels.train.inputs == 255).nonzero()[:, 1:].unique(dim=0)
    assert marked.tolist() == [[1, 3, 5]]
    assert [m / 255 for m in dataset.mean] == pytest.approx([0.4914, 0.4822, 0.4465], abs=5e-5)
    assert pixels.train.labels.tolist() == (b + i).tolist()
    assert pixels.test.inputs[:, 0, 0, 0].tolist() == [50, 51, 52, 53]
    assert pixels.test.labels.tolist() == [5, 6, 7, 8]


def test_cifar10_prefers_batches_then_their_archive(tmp_path: Path, tiny_archive: bytes) -> None:
    tree = write_tree(tmp_path)
    assert len(load(tmp_path).parts.test.labels) == 10
    (tmp_path / ARCHIVE).write_bytes(tiny_archive)
    check_tiny_batches(tmp_path)
    batches = tmp_path / "cifar-10-batches-py"  # unpacked, once
    there = {ARCHIVE, OWN_FOLDER, tree.name, batches.name}
    assert {path.name for path in tmp_path.iterdir()} == there
    (tmp_path / ARCHIVE).write_bytes(b"no longer needed")
    check_tiny_batches(tmp_path)
    (batches / "data_batch_3").unlink()  # incomplete: the archive is next
    assert refusal(load, tmp_path).startswith(f"{tmp_path / ARCHIVE}: damaged")
    (unwritable := tmp_path / "unwritable").mkdir()
    (unwritable / ARCHIVE).write_bytes(tiny_archive)
    (unwritable / OWN_FOLDER).touch()  # in the way of the lock, for root too
    check_tiny_batches(unwritable)
    assert {path.name for path in unwritable.iterdir()} == {ARCHIVE, OWN_FOLDER}


@pytest.mark.parametrize(("suffix", "tree"), [("png", "CIFAR-10-images"), ("jpg", "cifar10")])
def test_cifar10_loads_a_tree_of_images(tmp_path: Path, suffix: str, tree: str, caplog) -> None:
    place = write_tree(tmp_path, suffix, tree)
    (place / "train" / ".git").mkdir()
    (place / "train" / "cat" / "Thumbs.db").touch()
    pixels = load(tmp_path).parts
    assert "has 20 training and 10 test images; CIFAR-10 has 50000 and 10000" in caplog.text
    assert pixels.train.labels.tolist() == [c for c in range(10) for _ in range(2)]
    assert pixels.test.labels.tolist() == list(range(10))
    value = np.add.outer(20 * np.arange(10), [0, 5]).flatten()
    found = pixels.train.inputs[:, :2, 16, 8].numpy()
    np.testing.assert_allclose(found, np.stack([value, 255 - value], 1), atol=3 * (suffix == "jpg"))
    assert is_present("cifar10", tmp_path)
    for part in ("train", "test"):
        (place / part / "cats").mkdir()
        Image.new("RGB", (32, 32)).save(place / part / "cats" / "0.png")
    message = refusal(load, tmp_path)
    assert message.startswith(f"{place}: ")
    assert "cats" in message


EVIL = b"cos\nsystem\n(Vtouch evil-was-here\ntR."  # a pickle that calls os.system


def test_cifar10_files_not_official_are_named(
    tmp_path: Path, tiny_batches, tiny_archive: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / ARCHIVE
    path.write_bytes(tiny_archive[:-9])
    assert refusal(load, tmp_path).startswith(f"{path}: damaged")
    os.truncate(path, 1 << 40)
    assert refusal(load, tmp_path).startswith(f"{path}: ")
    place = tmp_path / "cifar-10-batches-py"
    place.mkdir()
    for wrong in ("data_batch_2", "batches.meta"):
        for name, content in tiny_batches.items():
            (place / name).write_bytes(content)
        (place / wrong).write_bytes(EVIL)
        assert refusal(load, tmp_path).startswith(f"{place / wrong}: damaged, or not the official")
        assert not (tmp_path / "evil-was-here").exists()
    os.truncate(place / "data_batch_1", 1 << 40)
    assert refusal(load, tmp_path).startswith(f"{place / 'data_batch_1'}: ")
