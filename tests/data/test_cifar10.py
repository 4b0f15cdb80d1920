"""CIFAR-10 in its three forms, whole, missing and damaged."""

import gzip
import io
import os
import pickle
import struct
import tarfile
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from fednnnn_plugin.data.cifar10_batches import read_batch
from fednnnn_plugin.data.cifar10_tree import CLASSES
from PIL import Image

from fednnnn_plugin.data import cifar10_tree
from fednnnn_plugin.data.load import load_images
from fednnnn_plugin.errors import UserError


def load(folder: Path):
    return load_images("cifar10", folder, download=False, seed=0)


def write_batches(folder: Path, batches: dict[str, bytes]) -> Path:
    place = folder / "cifar-10-batches-py"
    place.mkdir(parents=True)
    for name, content in batches.items():
        (place / name).write_bytes(content)
    return place


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


def assert_tiny_batches(pixels) -> None:
    assert pixels.train_images.shape == (20, 3, 32, 32)
    assert pixels.train_images[:, 2, 31, 31].tolist() == [
        10 * b + i for b in range(5) for i in range(4)
    ]
    assert pixels.train_labels.tolist() == [b + i for b in range(5) for i in range(4)]
    assert pixels.test_images[:, 0, 0, 0].tolist() == [50, 51, 52, 53]
    assert pixels.test_labels.tolist() == [5, 6, 7, 8]


def test_batches_and_their_archive(tmp_path: Path, tiny_batches, make_archive) -> None:
    write_batches(tmp_path / "a", tiny_batches)
    assert_tiny_batches(load(tmp_path / "a").pixels)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "cifar-10-python.tar.gz").write_bytes(make_archive(tiny_batches))
    assert_tiny_batches(load(tmp_path / "b").pixels)


@pytest.mark.parametrize("by_column", [False, True])
def test_python_itself_reads_the_stand_ins_of_the_official_batches(
    make_batch, by_column: bool
) -> None:
    images = np.arange(2 * 3072, dtype=np.int64).reshape(2, 3072).astype(np.uint8)
    batch = pickle.loads(make_batch(images, [3, 9], by_column), encoding="bytes")
    assert (batch[b"data"] == images).all()
    assert batch[b"labels"] == [3, 9]
    assert batch[b"filenames"] == [b"0000.png", b"0001.png"]
    read, labels = read_batch(io.BytesIO(make_batch(images, [3, 9], by_column)))
    # A row holds the red, then the green, then the blue plane, each row by row.
    assert torch.equal(read, torch.from_numpy(images).reshape(2, 3, 32, 32))
    assert labels.tolist() == [3, 9]


@pytest.mark.parametrize(
    ("suffix", "tree", "tolerance"), [("png", "CIFAR-10-images", 0), ("jpg", "cifar10", 3)]
)
def test_an_image_folder_tree(tmp_path: Path, suffix: str, tree: str, tolerance: int) -> None:
    place = write_tree(tmp_path, suffix, tree)
    (place / "train" / ".DS_Store").touch()
    (place / "train" / "cat" / "Thumbs.db").touch()
    pixels = load(tmp_path).pixels
    assert pixels.train_labels.tolist() == [c for c in range(10) for _ in range(2)]
    assert pixels.test_labels.tolist() == list(range(10))
    expected = torch.tensor([20 * c + 5 * i for c in range(10) for i in range(2)])
    assert (pixels.train_images[:, 0, 16, 16].int() - expected).abs().max() <= tolerance
    assert (pixels.train_images[:, 1, 3, 8].int() - 255 + expected).abs().max() <= tolerance


def test_the_original_arrays_come_first(tmp_path: Path, tiny_batches, make_archive) -> None:
    write_tree(tmp_path)
    assert len(load(tmp_path).pixels.test_labels) == 10
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(make_archive(tiny_batches))
    assert_tiny_batches(load(tmp_path).pixels)
    place = write_batches(tmp_path, tiny_batches)
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"broken")
    assert_tiny_batches(load(tmp_path).pixels)
    (place / "data_batch_3").unlink()  # incomplete: the archive is next
    with pytest.raises(UserError, match=r"cifar-10-python.tar.gz: not CIFAR-10's archive"):
        load(tmp_path)


def test_a_changed_tree_is_decoded_again(tmp_path: Path) -> None:
    tree = write_tree(tmp_path)
    load(tmp_path)
    Image.new("RGB", (32, 32), (99, 99, 99)).save(tree / "test" / "cat" / "0000.png")
    assert load(tmp_path).pixels.test_images[3].unique().tolist() == [99]
    (tree / "train" / "dog" / "0001.png").unlink()
    assert len(load(tmp_path).pixels.train_labels) == 19


def test_missing_data_says_what_where_and_how(tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        load(tmp_path)
    message = str(refused.value)
    assert "\n" not in message
    for part in (
        str(tmp_path),
        "cifar-10-batches-py/",
        "cifar-10-python.tar.gz",
        "CIFAR-10-images/{train,test}/<class>/*.jpg|png",
        "download: true",
    ):
        assert part in message


def png_claiming(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(bytes(1000)))
        + chunk(b"IEND", b"")
    )


def damaged_image(kind: str, whole: bytes) -> bytes:
    flipped = bytearray(whole)
    flipped[60] ^= 8
    return {
        "empty": b"",
        "text": b"not an image",
        "cut": whole[: len(whole) // 2],
        "flipped": bytes(flipped),
        "a million pixels square": png_claiming(1_000_000, 1_000_000),
        "too large": png_claiming(33, 32),
        "short of data": png_claiming(32, 32),
        "padded": whole + bytes(2_000_000),
    }[kind]


@pytest.mark.parametrize(
    "kind",
    [
        "empty",
        "text",
        "cut",
        "flipped",
        "a million pixels square",
        "too large",
        "short of data",
        "padded",
    ],
)
def test_a_damaged_image_is_named(tmp_path: Path, kind: str) -> None:
    path = write_tree(tmp_path) / "train" / "frog" / "0001.png"
    path.write_bytes(damaged_image(kind, path.read_bytes()))
    start = time.process_time()
    with pytest.raises(UserError, match=f"^{path}: not a 32 x 32 JPEG or PNG image: ") as refused:
        load(tmp_path)
    assert "\n" not in str(refused.value)
    assert time.process_time() - start < 2


def test_a_wrong_tree_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = write_tree(tmp_path)
    (tree / "train" / "cats").mkdir()
    with pytest.raises(UserError, match=f"^{tree}/train: expected the folders airplane, .* cats"):
        load(tmp_path)
    (tree / "train" / "cats").rmdir()
    with monkeypatch.context() as patch:
        patch.setattr(cifar10_tree, "_PARTS", {"train": 19, "test": 10})
        with pytest.raises(UserError, match=f"^{tree}/train: 20 images; CIFAR-10 has 19 of them"):
            load(tmp_path)
    image = tree / "test" / "ship" / "0000.png"
    image.rename(image.with_suffix(".txt"))
    with pytest.raises(UserError, match=f"^{tree}/test/ship: no .jpg, .jpeg, .png files"):
        load(tmp_path)
    os.mkfifo(image)
    with pytest.raises(UserError, match=f"^{image}: .*not a regular file"):
        load(tmp_path)
    (tree / "test").rename(tree / "validation")
    with pytest.raises(UserError, match=f"^{tree}/test: cannot be used: No such file"):
        load(tmp_path)


class Evil:
    def __reduce__(self):
        return os.system, ("touch evil-was-here",)


def array_pickle(array: np.ndarray, labels: list[int]) -> bytes:
    return pickle.dumps({b"data": array, b"labels": labels}, protocol=2)


def hostile_batches(make_batch) -> dict[str, bytes]:
    images = np.zeros((4, 3072), dtype=np.uint8)
    good = make_batch(images, [0, 1, 2, 3])
    return {
        "empty": b"",
        "text": b"hello",
        "cut": good[:-2000],
        "cut in the array": good[:6000],
        "calls os.system": pickle.dumps(Evil(), protocol=2),
        "calls os.system, protocol 0": pickle.dumps(Evil(), protocol=0),
        "calls eval by name": b"\x80\x02cbuiltins\neval\nU\x011\x85R.",
        "numpy, but another name": b"\x80\x02cnumpy\nload\nU\x011\x85R.",
        "another protocol": pickle.dumps({b"labels": [1]}, protocol=5),
        "not a dictionary": b"\x80\x02]q\x01.",
        "calls a string": b"\x80\x02U\x01a)R.",
        "sets state on a placeholder": b"\x80\x02cnumpy\ndtype\n}U\x01aK\x01sb.",
        "no labels": make_batch(images, [0, 1, 2, 3]).replace(b"U\x06labels", b"U\x06lapels"),
        "labels and images differ": make_batch(images, [0, 1, 2]),
        "no images": make_batch(images[:0], []),
        "a label of 10": make_batch(images, [0, 1, 2, 10]),
        "rows of another length": make_batch(images[:, :3000], [0, 1, 2, 3]),
        "other elements": good.replace(b"U\x02u1", b"U\x02O8"),
        "a huge memo index": good.replace(b"}q\x01", b"}r\xff\xff\xff\x7f"),
        "endless lists": b"\x80\x02" + b"]" * 3_000_000 + b".",
        "a string longer than the file": b"\x80\x02T\xff\xff\xff\x7fabc.",
        "state of nothing": b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\n"
        b"K\x00K\x00K\x00\x87RU\x06labels](K\x00eu.",
    }


HOSTILE = list(hostile_batches(lambda images, labels: b""))


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_batch_is_named_and_does_nothing(
    tmp_path: Path, tiny_batches, make_batch, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = write_batches(tmp_path, tiny_batches)
    (place / "data_batch_2").write_bytes(hostile_batches(make_batch)[name])
    start = time.process_time()
    with pytest.raises(UserError, match=f"^{place}/data_batch_2: ") as refused:
        load(tmp_path)
    assert "\n" not in str(refused.value)
    assert time.process_time() - start < 3
    assert not (tmp_path / "evil-was-here").exists()


@pytest.mark.parametrize("seed", range(40))
def test_flipped_bits_give_a_result_or_a_user_error(make_batch, seed: int) -> None:
    rng = np.random.default_rng(seed)
    content = bytearray(make_batch(np.zeros((2, 3072), dtype=np.uint8), [0, 1]))
    structure = [*range(330), *range(len(content) - 80, len(content))]  # beside the pixels
    for _ in range(50):
        damaged = bytearray(content)
        damaged[rng.choice(structure)] ^= 1 << rng.integers(8)
        try:
            images, labels = read_batch(io.BytesIO(damaged))
        except ValueError:
            continue
        assert images.shape == (len(labels), 3, 32, 32)
        assert labels.max() < 10


def test_too_large_a_batch_is_not_read(tmp_path: Path, tiny_batches) -> None:
    place = write_batches(tmp_path, tiny_batches)
    os.truncate(place / "test_batch", 1 << 40)
    with pytest.raises(UserError, match=f"^{place}/test_batch: 1099511627776 bytes, more than"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda whole: b"", "."),
        (lambda whole: b"no archive", "Not a gzipped file"),
        (lambda whole: whole[: len(whole) // 2], "."),
        (lambda whole: whole[:-8] + b"\0\0\0\0" + whole[-4:], "CRC"),
        (lambda whole: gzip.compress(b"no tar" * 1000), "."),
    ],
)
def test_a_damaged_archive_is_named(
    tmp_path: Path, tiny_archive: bytes, damage, problem: str
) -> None:
    path = tmp_path / "cifar-10-python.tar.gz"
    path.write_bytes(damage(tiny_archive))
    with pytest.raises(UserError, match=f"^{path}: not CIFAR-10's archive: .*{problem}") as no:
        load(tmp_path)
    assert "\n" not in str(no.value)


def test_an_archive_with_a_batch_missing_or_bad(tmp_path: Path, tiny_batches, make_archive) -> None:
    path = tmp_path / "cifar-10-python.tar.gz"
    path.write_bytes(make_archive({k: v for k, v in tiny_batches.items() if k != "test_batch"}))
    with pytest.raises(UserError, match=r"it lacks test_batch$"):
        load(tmp_path)
    for content in (b"x", bytes(41_000_000)):
        path.write_bytes(make_archive(tiny_batches | {"test_batch": content}))
        with pytest.raises(UserError, match=r"cifar-10-batches-py/test_batch: "):
            load(tmp_path)


def test_an_archive_that_unpacks_to_a_gigabyte_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "cifar-10-python.tar.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        member = tarfile.TarInfo("cifar-10-batches-py/readme.html")
        member.size = 1 << 30
        file.write(member.tobuf())
        for _ in range(300):
            file.write(bytes(1 << 20))
    with pytest.raises(UserError, match=r"unpacks to more than 256000000 bytes"):
        load(tmp_path)


@pytest.mark.real_data
def test_the_real_images(real_data_dir: Path) -> None:
    dataset = load(real_data_dir)
    pixels = dataset.pixels
    assert pixels.train_images.shape == (50_000, 3, 32, 32)
    assert torch.bincount(pixels.train_labels).tolist() == [5000] * 10
    assert torch.bincount(pixels.test_labels).tolist() == [1000] * 10
    scaled = pixels.train_images.double().div_(255)
    # Re-encoded as JPEG, which moves the mean a little and smooths a little.
    assert scaled.mean((0, 2, 3)).tolist() == pytest.approx(dataset.mean, abs=0.003)
    assert scaled.std((0, 2, 3), correction=0).tolist() == pytest.approx(dataset.std, abs=0.003)
