"""torchvision's image sets by name: small files made as the official ones are, and Debian's."""

import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
import torchvision

import fednnnn_plugin as fp
from fednnnn_plugin.data.sets import is_present

from ..tiny import quick_run
from .conftest import load_images, md5, packed, refusal, write_idx

DEBIANS = Path("/usr/share/datasets/fashion-mnist")  # of its package dataset-fashion-mnist
NAMES = {
    "FashionMNIST": ("train", "t10k"),
    "KMNIST": ("train", "t10k"),
    "EMNIST": ("emnist-balanced-train", "emnist-balanced-test"),
}


@pytest.mark.parametrize("name", NAMES)
def test_sets_of_mnists_format(name: str, tmp_path: Path) -> None:
    missing = refusal(load_images, name, tmp_path)
    assert missing.startswith(f"data_cache_dir: {tmp_path}: ")
    assert f"{name}/raw/" in missing
    for part, count in zip(NAMES[name], (6, 4), strict=True):
        raw = tmp_path / name / "raw"
        write_idx(raw / f"{part}-images-idx3-ubyte.gz", np.full((count, 28, 28), count))
        write_idx(raw / f"{part}-labels-idx1-ubyte.gz", np.arange(count))
    assert is_present(name, tmp_path)
    loaded = load_images(name, tmp_path)
    assert loaded.parts.train.inputs.shape == (6, 1, 28, 28)
    assert loaded.parts.test.labels.tolist() == [0, 1, 2, 3]
    assert loaded.mean == (6.0,)
    assert len(loaded.class_names) == (47 if name == "EMNIST" else 10)


def test_page_of_data_sets_has_the_classes_of_torchvision() -> None:
    """Of ``letters`` there are 26, numbered from 1: torchvision has a name for 0, too."""
    page = (Path(__file__).parents[2] / "docs" / "datasets.md").read_text()
    found = dict(re.findall(r"`split: (\w+)` (?:\|[^|]*){2}\| (?:[^|]* )?(\d+)[ a-z]*\|", page))
    classes = torchvision.datasets.EMNIST.classes_split_dict
    assert found == {split: str(len(names)) for split, names in classes.items()}


def test_argument_of_a_set_is_checked(tmp_path: Path) -> None:
    given = {"dataset": "EMNIST", "data_cache_dir": str(tmp_path), "download": False}
    for more, said in (
        ({"data_args.split": "leters"}, r"data_args\.split: 'leters': "),
        ({"data_args.split": "letters"}, "EMNIST/raw/emnist-letters-train-images"),
        ({"dataset": "KMNIST", "data_args.split": "letters"}, r"data_args\.split: "),
    ):
        with pytest.raises(fp.UserError, match=said):
            quick_run(tmp_path / "run", **given | more)


@pytest.fixture
def cifar100(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with an archive of 4 training images and 2 test images."""
    of, files = torchvision.datasets.CIFAR100, {"meta": pickle.dumps({"fine_label_names": []}, 2)}
    for name, count in (("train", 4), ("test", 2)):
        images = np.repeat(np.arange(count, dtype=np.uint8)[:, None], 3072, axis=1)
        labels = [99 - i for i in range(count)]
        files[name] = pickle.dumps({"data": images, "fine_labels": labels}, 2)
    (tmp_path / of.filename).write_bytes(packed(of, files, monkeypatch))
    return tmp_path


def test_cifar100_is_unpacked_and_checked(cifar100: Path) -> None:
    loaded = load_images("CIFAR100", cifar100)
    assert loaded.parts.train.labels.tolist() == [99, 98, 97, 96]
    assert loaded.parts.train.inputs[:, 2, 31, 31].tolist() == [0, 1, 2, 3]
    assert len(loaded.class_names) == 100
    unpacked = cifar100 / "cifar-100-python" / "train"
    unpacked.write_bytes(unpacked.read_bytes() + b"\0")  # a pickle that is not the official one
    assert refusal(load_images, "CIFAR100", cifar100).startswith(f"{unpacked}: damaged, or not the")


def test_svhn_numbers_its_zero_from_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = torchvision.datasets.SVHN
    for split, count in (("train", 3), ("test", 2)):
        file = tmp_path / f"{split}_32x32.mat"
        images = np.zeros((32, 32, 3, count), np.uint8)
        images[0, 1, 2] = np.arange(count)  # row 0, column 1, blue
        scipy.io.savemat(file, {"X": images, "y": np.array([[10], [1], [2]])[:count]})
        listed = [*of.split_list[split][:2], md5(file.read_bytes())]
        monkeypatch.setitem(of.split_list, split, listed)
    loaded = load_images("SVHN", tmp_path).parts
    assert loaded.train.labels.tolist() == [0, 1, 2]
    assert loaded.train.inputs[:, 2, 0, 1].tolist() == [0, 1, 2]
    (tmp_path / "test_32x32.mat").unlink()
    assert "looked for test_32x32.mat" in refusal(load_images, "SVHN", tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not DEBIANS.is_dir(), reason="no Debian package dataset-fashion-mnist")
def test_fashion_mnist_of_debian(tmp_path: Path) -> None:
    """The 70,000 images; the known mean and deviation of the training ones are 0.286 and 0.353."""
    (tmp_path / "FashionMNIST").mkdir()
    (tmp_path / "FashionMNIST" / "raw").symlink_to(DEBIANS)
    loaded = load_images("FashionMNIST", tmp_path)
    assert [len(part.inputs) for part in loaded.parts] == [60_000, 10_000]
    assert torch.bincount(loaded.parts.train.labels).tolist() == [6_000] * 10
    assert (loaded.mean[0] / 255, loaded.std[0] / 255) == pytest.approx((0.2860, 0.3530), abs=5e-5)
    assert loaded.class_names[9] == "Ankle boot"
