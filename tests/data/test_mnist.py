import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from fednnnn_plugin.data.cache import FOLDER
from fednnnn_plugin.data.load import load_images
from fednnnn_plugin.errors import UserError


def load(folder: Path, **named) -> torch.Tensor:
    return load_images("mnist", folder, **{"download": False, "seed": 0} | named)


def test_torchvision_reads_the_same(tiny_mnist: Path, write_idx) -> None:
    from torchvision.datasets.mnist import read_image_file, read_label_file

    pixels = load(tiny_mnist).pixels
    raw = tiny_mnist / "MNIST" / "raw"
    plain = raw / "plain"
    write_idx(plain, pixels.train_images[:, 0].numpy())
    assert torch.equal(read_image_file(str(plain)), pixels.train_images[:, 0])
    write_idx(plain, pixels.test_labels.numpy())
    assert torch.equal(read_label_file(str(plain)), pixels.test_labels)


def test_compressed_or_not(tiny_mnist: Path) -> None:
    import gzip

    before = load(tiny_mnist).pixels
    for path in (tiny_mnist / "MNIST" / "raw").glob("*.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    after = load(tiny_mnist).pixels
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert before.train_images.shape == (30, 1, 28, 28)
    assert before.train_labels.tolist() == [i % 10 for i in range(30)]


def test_missing_files_are_named(tiny_mnist: Path) -> None:
    (tiny_mnist / "MNIST" / "raw" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(UserError) as refused:
        load(tiny_mnist)
    assert str(refused.value) == (
        f"{tiny_mnist}: no MNIST here: looked for t10k-labels-idx1-ubyte (or .gz) in MNIST/raw; "
        "set download: true, or put torchvision's files there"
    )


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


def test_a_folder_that_cannot_be_read(tiny_mnist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "exists", refuse)  # root, as tests may run, may read everything
    with pytest.raises(UserError, match=f"^{tiny_mnist}: cannot be used: Permission denied$"):
        load(tiny_mnist)


def test_images_and_labels_must_agree(tiny_mnist: Path, write_idx) -> None:
    path = tiny_mnist / "MNIST" / "raw" / "train-labels-idx1-ubyte.gz"
    write_idx(path, np.zeros(29))
    with pytest.raises(UserError, match=f"^{path}: 29 labels for the 30 images of train-images"):
        load(tiny_mnist)
    write_idx(path, np.full(30, 10))
    with pytest.raises(UserError, match=f"^{path}: has label 10; they go from 0 to 9"):
        load(tiny_mnist)


def test_images_of_another_shape(tiny_mnist: Path, write_idx) -> None:
    path = tiny_mnist / "MNIST" / "raw" / "t10k-images-idx3-ubyte.gz"
    write_idx(path, np.zeros((20, 28, 27)))
    with pytest.raises(UserError, match=f"^{path}: .* holds .20, 28, 27., not at most"):
        load(tiny_mnist)


@pytest.mark.real_data
def test_the_real_files(real_data_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(real_data_dir / "MNIST", tmp_path / "MNIST")
    first, again = (load(tmp_path) for _ in range(2))  # decoded, then from the cache
    assert (tmp_path / FOLDER / "mnist.safetensors").exists()
    assert all(torch.equal(a, b) for a, b in zip(first.pixels, again.pixels, strict=True))
    pixels = first.pixels
    assert pixels.train_images.shape == (60_000, 1, 28, 28)
    assert pixels.test_images.shape == (10_000, 1, 28, 28)
    assert torch.bincount(pixels.test_labels).tolist() == [
        980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009,
    ]  # fmt: skip
    scaled = pixels.train_images.double() / 255
    assert scaled.mean().item() == pytest.approx(first.mean[0], abs=1e-5)
    assert scaled.std(correction=0).item() == pytest.approx(first.std[0], abs=1e-5)
