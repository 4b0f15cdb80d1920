"""Folders of images: both layouts, and one line for each thing that is wrong or hostile."""

import os
import re
import shutil
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image

from fednnnn_plugin.data import image_files
from fednnnn_plugin.data.images import ImageDataset
from fednnnn_plugin.data.sets import DATASETS

from .conftest import DIGITS, refusal


def save(path: Path, value: int, size: tuple[int, int] = (6, 4)) -> Path:
    """An image of one value; its size is height and width."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size[::-1], value).save(path)
    return path


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """Two training images and one test image of each of two classes, which differ in value."""
    folder = tmp_path / "images"
    for label, name in enumerate(("cat", "dog")):
        save(folder / "train" / name / "0.png", 10 + label)
        save(folder / "train" / name / "1.png", 20 + label)
        save(folder / "test" / name / "0.png", 30 + label)
    return folder


def load(folder: Path, **changed: Any) -> ImageDataset:
    given: dict[str, Any] = {"data_dir": folder, "data_cache_dir": folder.parent / "cache"}
    return DATASETS["image_folder"].load(replace(DIGITS, **given | {"seed": 0} | changed))


def test_folder_in_parts_worked_by_hand(parts: Path) -> None:
    dataset = load(parts)
    pixels = dataset.parts
    assert dataset.class_names == ("cat", "dog")
    assert pixels.train.inputs.shape == (4, 1, 6, 4)
    assert pixels.train.inputs[:, 0, 0, 0].tolist() == [10, 20, 11, 21]
    assert pixels.train.labels.tolist() == [0, 0, 1, 1]
    assert pixels.test.inputs[:, 0, 0, 0].tolist() == [30, 31]
    assert pixels.test.labels.tolist() == [0, 1]
    # Of 10, 20, 11 and 21: mean 15.5, squares of deviation 30.25, 20.25, 20.25, 30.25.
    assert dataset.mean == pytest.approx((15.5,))
    assert dataset.std == pytest.approx((25.25**0.5,))
    normalised = dataset.normalisation(pixels.test.inputs)[0, 0, 0, 0]
    assert normalised.item() == pytest.approx(14.5 / 25.25**0.5, rel=1e-5)


def test_folder_whole_is_split_by_class(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    for label, (name, count) in enumerate((("a", 10), ("b", 20), ("train", 5))):
        for i in range(count):
            save(folder / name / f"{i:02}.png", 50 * label + i)
    first, other = (load(folder, seed=seed).parts for seed in (1, 2))
    assert torch.bincount(first.test.labels).tolist() == [2, 4, 1]
    assert torch.bincount(first.train.labels).tolist() == [8, 16, 4]
    assert not torch.equal(first.test.inputs, other.test.inputs)
    both = torch.cat([first.train.inputs, first.test.inputs])[:, 0, 0, 0].sort().values
    assert both.tolist() == [*range(10), *range(50, 70), *range(100, 105)]  # each once
    for fraction, what in ((0.9, "class train"), (0.01, "the test")):
        message = refusal(load, folder, test_fraction=fraction)
        assert message.startswith(f"data_args.test_fraction: {fraction}: leaves {what}")


def test_images_of_several_sizes_are_resized(parts: Path) -> None:
    odd = save(parts / "train" / "cat" / "2.JPG", 40, (9, 5))
    where = f"{odd}: .* 9 x 5 .*{parts}/train/cat/0.png .* 6 x 4.*data_args.image_size"
    assert re.match(where, refusal(load, parts))
    images = load(parts, image_size=(3, 2)).parts.train.inputs
    assert images[:, 0].flatten(1).float().mean(1).tolist() == pytest.approx([10, 20, 40, 11, 21])


def test_folder_is_decoded_once_until_it_changes(
    parts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load(parts).parts
    with monkeypatch.context() as patch:
        patch.setattr(image_files, "decode", None)
        again = load(parts, seed=5).parts
        patch.setattr(image_files, "VERSION", image_files.VERSION + 1)
        with pytest.raises(TypeError):
            load(parts)
    assert again.digest() == first.digest()
    save(parts / "train" / "cat" / "1.png", 99)
    assert load(parts).parts.train.inputs[1].unique().tolist() == [99]


def test_what_lies_beside_is_said(parts: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("val/cat", "__MACOSX/cat", "train/__MACOSX", "train/.ipynb_checkpoints"):
        (parts / name).mkdir(parents=True)
    (parts / "labels.csv").write_text("not an image")
    (parts / "train" / ".git").mkdir()
    (parts / "train" / "cat" / ".hidden.png").write_text("not an image")
    (parts / "train" / "cat" / "notes.webp").write_text("not an image")
    save(parts / "train" / "cat" / "deeper" / "0.png", 3)
    for name in ("cat", "dog"):  # which goes round in a circle
        (parts / "train" / name / "up").symlink_to("..")
    assert len(load(parts).parts.train.labels) == 4
    assert "4 entries are not" in caplog.text
    assert f"{parts}: left out beside train and test: val" in caplog.text
    assert "MACOSX" not in caplog.text


def test_image_is_turned_as_its_exif_says(parts: Path) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6  # to be turned to the right
    stored = np.arange(24, dtype=np.uint8).reshape(4, 6)
    turned, damaged = (parts / "train" / name / "0.png" for name in ("cat", "dog"))
    Image.fromarray(stored).save(turned, exif=exif)
    Image.fromarray(stored.T).save(damaged, exif=b"Exif\0\0no TIFF")
    images = load(parts).parts.train.inputs[:, 0]
    assert images[0].tolist() == np.rot90(stored, -1).tolist()
    assert images[2].tolist() == stored.T.tolist()


def png(width: int, height: int) -> bytes:
    """A file that claims a width and a height, and has no pixels."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [struct.pack(">I", 13), header, struct.pack(">I", zlib.crc32(header))]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts) + b"\0\0\0\0IEND\xaeB`\x82"


DAMAGES: list[tuple[str, Callable[[Path], Any]]] = [
    ("neither format", lambda path: path.write_bytes(b"%!PS-Adobe\n")),
    ("that can be used", lambda path: os.truncate(path, 45)),
    ("not a regular file", lambda path: [path.unlink(), os.mkfifo(path)]),
    ("cannot be used", lambda path: [path.unlink(), path.symlink_to("gone")]),
    ("more than 8 bits", Image.fromarray(np.full((6, 4), 40_000, dtype=np.uint16)).save),
    ("decompression bomb", lambda path: path.write_bytes(png(10**6, 10**6))),
    ("decompression bomb", lambda path: path.write_bytes(png(10**4, 10**4))),  # of a warning
]


@pytest.mark.filterwarnings("error::UserWarning", "error::RuntimeWarning")
@pytest.mark.parametrize(("place", "size"), [("0.png", None), ("1.png", (2, 2))])
def test_image_that_is_hostile_is_one_line(
    parts: Path, place: str, size: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = parts / "train" / "cat" / place
    for said, damage in DAMAGES:
        damage(path)
        message = refusal(load, parts, image_size=size)
        assert message.startswith(f"{path}: ")
        assert said in message
        path.unlink()
        path.touch()
    save(path, 1)
    path.with_name("1.png").write_bytes(png(4, 6))  # its decoding would fail
    monkeypatch.setattr(image_files, "MAX_DECODED_BYTES", 1)  # all would not fit in memory
    assert refusal(load, parts, image_size=size).startswith("data_args.image_size: ")


def test_folder_that_is_wrong_is_one_line(parts: Path) -> None:
    where = f"data_args.data_dir: {parts}: "
    image = parts / "test" / "dog" / "0.png"
    other = save(parts / "test" / "e\nl" / "0.png", 1).parent
    assert re.match(rf"{where}.* e\\nl", refusal(load, parts))
    shutil.rmtree(other)
    image.rename(image.with_suffix(".gif"))
    assert refusal(load, parts).startswith(f"{image.parent}: ")
    shutil.rmtree(parts / "test")
    save(parts / "test" / "0.png", 1)  # images of no class
    assert "test has no folder" in refusal(load, parts)
    shutil.rmtree(parts / "train" / "cat")
    assert refusal(load, parts).startswith(f"{where}1 folders in {parts}/train")
    shutil.rmtree(parts)
    assert refusal(load, parts).startswith(where)
    parts.mkdir()
    assert refusal(load, parts).startswith(f"{where}0 folders in {parts}")


@pytest.mark.parametrize(
    ("train", "test", "remedy"),
    [
        ("Training", "Testing", "rename Training to train and Testing to test"),
        ("train", "val", "rename val to test"),
        ("seg_train/seg_train", "seg_test/seg_test", "rename seg_train/seg_train to train and "),
        ("set/train", "set/test", "images/set, if"),
        ("train/train", "test/test", "train/train up into "),
    ],
)
def test_layout_of_other_names_says_how_to_rename(
    parts: Path, train: str, test: str, remedy: str
) -> None:
    for name, part in ((train, "train"), (test, "test")):
        (parts / part).rename(parts / "moved")
        (parts / name).parent.mkdir(parents=True, exist_ok=True)
        (parts / "moved").rename(parts / name)
    assert remedy in refusal(load, parts)
