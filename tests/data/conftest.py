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
from typing import Any

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
def tiny_batches() -> dict[str, bytes]:
    """The names of the classes, and six batches of 4 images each.

    Image i of batch b is filled with 10 b + i, but for one green of 255.
    """
    batches = {"batches.meta": pickle.dumps({"label_names": [*"abcdefghij"]}, protocol=2)}
    for b, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        images = np.repeat(np.arange(4, dtype=np.uint8)[:, None] + 10 * b, 3072, axis=1)
        images[:, 1024 + 32 * 3 + 5] = 255  # green, of row 3 and column 5
        labels = [(b + i) % 10 for i in range(4)]
        batches[name] = pickle.dumps({"data": images, "labels": labels}, protocol=2)
    return batches


@pytest.fixture
def tiny_archive(tiny_batches: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> bytes:
    """The batches in an archive."""
    return packed(torchvision.datasets.CIFAR10, tiny_batches, monkeypatch)


def packed(of: Any, files: Mapping[str, bytes], monkeypatch: pytest.MonkeyPatch) -> bytes:
    """An archive of a CIFAR's files, the test batch the last; torchvision takes all for right."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{of.base_folder}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    (_, of_meta), *batches = [[name, md5(content)] for name, content in files.items()]
    monkeypatch.setattr(of, "train_list", batches[:-1])
    monkeypatch.setattr(of, "test_list", batches[-1:])
    monkeypatch.setattr(of, "meta", of.meta | {"md5": of_meta})
    monkeypatch.setattr(of, "tgz_md5", md5(buffer.getvalue()))
    return buffer.getvalue()
