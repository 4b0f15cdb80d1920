"""The same pixels, in the same order, and the same partitions as before the readers were others.

``digests.json`` was written by the readers of version 0.1.0's development that parsed every file
themselves: SHA-256, 16 digits of it, of each tensor and of each partition. Later ones are those of
the Dirichlet splits and of the published runs.
"""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pytest
import torch
from PIL import Image

from fednnnn_plugin.data.federated import FederatedData, load_federated
from fednnnn_plugin.data.partition import partition
from fednnnn_plugin.data.sets.digits import load_digits

from .conftest import DIGITS, load_images

DIGESTS = json.loads(Path(__file__).with_name("digests.json").read_text())
TENSORS, PARTITIONS = DIGESTS["tensors"], DIGESTS["partitions"]
PILLOW = "13."  # whose filter resized the images: others give other pixels
MODES = {"grey": ("L",), "colour": ("RGB", "RGBA", "P", "L", "LA")}


def load(folder: Path, dataset: str, **changed: Any) -> FederatedData:
    given = {"partition_method": "iid", "num_clients": 2, "seed": 0} | changed
    return load_federated(replace(DIGITS, dataset=dataset, data_cache_dir=folder, **given))


def digests(data: FederatedData) -> list[str]:
    train, test = data.normalised(data.train_images), data.normalised(data.test_images)
    tensors = (train, data.train_labels, test, data.test_labels)
    return [hashlib.sha256(t.contiguous().numpy().tobytes()).hexdigest()[:16] for t in tensors]


def write_images(folder: Path, kind: str, parts: tuple[str, ...], one_size: bool) -> None:
    rng = np.random.default_rng(4)
    for part in parts:
        for label, name in enumerate(("b", "a", "Z")):
            (folder / part / name).mkdir(parents=True)
            for i in range(7):
                side = (9, 7) if one_size else (9 + i, 7 + 2 * label)
                pixels = rng.integers(0, 256, (*side, 3), dtype=np.uint8)
                image = Image.fromarray(pixels).convert(MODES[kind][i % len(MODES[kind])])
                image.save(folder / part / name / f"{i}.png")


@pytest.mark.parametrize("name", [name for name in TENSORS if name.startswith("images")])
def test_digests_of_folders_of_images(name: str, tmp_path: Path) -> None:
    kind, layout, *resized = name.removeprefix("images, ").split(maxsplit=2)
    size = (5, 6) if resized == ["resized"] else None
    parts = ("train", "test") if layout == "parts" else ("",)
    write_images(tmp_path / "images", kind, parts, one_size=size is None)
    more = {"data_dir": tmp_path / "images", "image_size": size, "seed": 1}
    data = load(tmp_path / "c", "image_folder", **more)
    found, expected = digests(data), TENSORS[name]
    Image.new("L", (7, 9)).save(tmp_path / "images" / parts[0] / "a" / "0.png")
    changed = load(tmp_path / "c", "image_folder", **more)
    assert changed.fingerprint["data"] != data.fingerprint["data"]
    if size is not None and not PIL.__version__.startswith(PILLOW):
        found, expected = found[1::2], expected[1::2]  # the labels
    assert found == expected


def test_digests_of_digits(tmp_path: Path) -> None:
    for seed in (0, 5):
        assert digests(load(tmp_path, "digits", seed=seed)) == TENSORS[f"digits, seed {seed}"]
    held_out = load(tmp_path, "digits", seed=3, validation_fraction=0.2)
    assert digests(held_out) == TENSORS["digits, a fifth held out"]


@pytest.mark.slow
@pytest.mark.real_data
@pytest.mark.parametrize("dataset", ["mnist", "cifar10"])
def test_digests_of_the_real_images(dataset: str, real_data_dir: Path) -> None:
    data = load(real_data_dir, dataset)
    stated = load_images(dataset, real_data_dir)
    near = {"mnist": 0.5e-5, "cifar10": 2e-3}[dataset]  # JPEG's losses
    for channel, *of in zip(data.train_images.unbind(1), stated.std, stated.mean, strict=True):
        found = [moment.item() for moment in torch.std_mean(channel.float(), correction=0)]
        assert found == pytest.approx(of, rel=0, abs=near * 255)
    if dataset == "cifar10" and [*real_data_dir.glob("cifar-10-*")]:
        pytest.skip("its authors' files: the digests are those of a tree of JPEG files")
    assert digests(data) == TENSORS[dataset]
    for name in PARTITIONS:
        if name.startswith(dataset):
            assert digest_of_partition(data.train_labels, name) == PARTITIONS[name]


def digest_of_partition(labels: np.ndarray | torch.Tensor, name: str) -> str:
    _, method, sizes, clients, seed, classes, exponent = name.split()
    settings = (int(clients), method, sizes, int(classes), float(exponent))
    whole = hashlib.sha256()
    for indices in partition(labels, *settings, seed=int(seed)):
        whole.update(len(indices).to_bytes(8, "little") + indices.astype("<i8").tobytes())
    return whole.hexdigest()[:16]


@pytest.mark.parametrize("name", [name for name in PARTITIONS if name.startswith("shuffled")])
def test_digests_of_partitions(name: str) -> None:
    labels = np.repeat(np.arange(7), [900, 100, 300, 333, 511, 700, 801])
    shuffled = np.random.default_rng(0).permutation(labels)
    assert digest_of_partition(shuffled, name) == PARTITIONS[name]


@pytest.mark.parametrize("name", [name for name in PARTITIONS if name.startswith("digits")])
def test_digests_of_partitions_of_digits(name: str) -> None:
    labels = load_digits(int(name.split()[4])).parts.train.labels
    assert digest_of_partition(labels, name) == PARTITIONS[name]
