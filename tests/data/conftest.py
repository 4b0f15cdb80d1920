"""Small files made as the official ones are."""

import gzip
import hashlib
import io
import pickle
import struct
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torchvision

from fednnnn_plugin.data.images import ImageDataset
from fednnnn_plugin.data.sets import DATASETS
from fednnnn_plugin.data.spec import DataSpec
from fednnnn_plugin.errors import UserError

DIGITS = DataSpec(
    dataset="digits",
    data_cache_dir=Path("/nonexistent"),
    download=False,
    partition_method="n_class",
    partition_sizes="balanced",
    classes_per_client=2,
    power_law_exponent=1.0,
    min_samples=10,
    num_clients=20,
    seed=3,
)


def load_images(dataset: str, folder: Path, *, download: bool = False) -> ImageDataset:
    """Load a data set of this name from a data folder."""
    spec = replace(DIGITS, dataset=dataset, data_cache_dir=folder, download=download)
    return DATASETS[dataset].load(spec)


def refusal(load: Callable[..., object], *arguments: object, **more: object) -> str:
    """The one line in which it ends."""
    with pytest.raises(UserError) as refused:
        load(*arguments, **more)
    assert str(refused.value).isprintable()
    return str(refused.value)


def write_idx(path: Path, array: np.ndarray) -> None:
    content = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    content += array.astype(np.uint8).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content))


@pytest.fixture
def tiny_mnist(tmp_path: Path) -> Path:
    """A data folder with 30 training and 20 test images in MNIST's layout, compressed."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 30), ("t10k", 20)):
        raw = tmp_path / "MNIST" / "raw"
        images = rng.integers(0, 256, (count, 28, 28))
        write_idx(raw / f"{part}-images-idx3-ubyte.gz", images)
        write_idx(raw / f"{part}-labels-idx1-ubyte.gz", np.arange(count) % 10)
    return tmp_path


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


@pytest.fixture
def tiny_batches(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Six batches of 4 images each, and their names, with sums that torchvision takes for right.

    Image i of batch b is filled with 10 b + i, but for one green of 255.
    """
    cifar10 = torchvision.datasets.CIFAR10
    batches = {"batches.meta": pickle.dumps({"label_names": [*"abcdefghij"]}, protocol=2)}
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    for b, name in enumerate(names):
        images = np.repeat(np.arange(4, dtype=np.uint8)[:, None] + 10 * b, 3072, axis=1)
        images[:, 1024 + 32 * 3 + 5] = 255  # green, of row 3 and column 5
        labels = [(b + i) % 10 for i in range(4)]
        batches[name] = pickle.dumps({"data": images, "labels": labels}, protocol=2)
    sums = [[name, md5(batches[name])] for name in names]
    monkeypatch.setattr(cifar10, "train_list", sums[:5])
    monkeypatch.setattr(cifar10, "test_list", sums[5:])
    monkeypatch.setattr(cifar10, "meta", cifar10.meta | {"md5": md5(batches["batches.meta"])})
    return batches


def packed(folder: str, files: Mapping[str, bytes]) -> bytes:
    """An archive of a folder with these files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture
def tiny_archive(tiny_batches: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> bytes:
    """The batches in an archive, with a sum that torchvision takes for right."""
    archive = packed("cifar-10-batches-py", tiny_batches)
    monkeypatch.setattr(torchvision.datasets.CIFAR10, "tgz_md5", md5(archive))
    return archive
