"""Files that are broken, hostile or no files: one line and status 2, or a fall-back; soon."""

import gzip
import io
import itertools
import os
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from fednnnn_plugin.data.cifar10 import CLASSES
from fednnnn_plugin.recipe import find_recipe
from fednnnn_plugin.recipe.problems import MAX_LINES

MEMORY = 1 << 30
SECONDS = 20
Quick = Callable[..., list[str]]


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for position in range(0, len(content), 97):
        content[position] ^= 1 << position % 8
    path.write_bytes(content)


def nested(path: Path) -> None:
    path.write_bytes(b"[" * 200_000)


def repeated(path: Path) -> None:
    path.write_bytes(b'{"a": ' * 100_000)


def grown(path: Path) -> None:
    os.truncate(path, 10**12)


def of_zeros(path: Path) -> None:
    path.write_bytes(b"")
    os.truncate(path, 10**12)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def nowhere(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def circle(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


CONTENTS = (emptied, cut, flipped, nested, repeated, grown, of_zeros)
PLACES = (folder, pipe, endless, nowhere, circle)


def check_lines(ended: Any) -> None:
    """Check that it went well, or says what is wrong with the user's input in single lines."""
    assert ended.status in (0, 2), ended
    lines = ended.stderr.splitlines()
    mistakes = [line for line in lines if "warning" not in line]
    assert ended.status == 0 or 1 <= len(mistakes) <= MAX_LINES + 1
    assert "Traceback" not in ended.stderr
    assert all(len(line) < 1_000 and line.isprintable() for line in lines), ended


@pytest.fixture(scope="module")
def runs(commands: Any, quick: Quick, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs, of 2 rounds and of 3."""
    place = tmp_path_factory.mktemp("hostile")
    for rounds in (2, 3):
        assert commands.run(*quick(rounds, comm_round=rounds), folder=place).status == 0
    return place


@pytest.fixture
def bounded(commands: Any, tmp_path: Path) -> Callable[..., Any]:
    """Run a command in ``tmp_path`` with little memory and time."""

    def run(*arguments: str | Path) -> Any:
        return commands.run(*arguments, folder=tmp_path, memory=MEMORY, seconds=SECONDS)

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "damages"),
    [
        ("recipe.yaml", CONTENTS + PLACES),
        ("metrics.jsonl", CONTENTS + PLACES),
        ("summary.json", CONTENTS + PLACES),
        ("checkpoint/round-000002-*", CONTENTS + PLACES),
        ("checkpoint/round-*", CONTENTS + PLACES),
        ("model.safetensors", (flipped, *PLACES)),
        ("fedml.log", (grown, *PLACES)),
        (".lock", (grown, *PLACES)),
    ],
)
def test_a_damaged_run_folder_is_resumed_to_the_same_bytes_or_refused_and_reported(
    bounded: Any, quick: Quick, runs: Path, tmp_path: Path, name: str, damages: Any
) -> None:
    for damage in damages:
        shutil.copytree(runs / "2", tmp_path / "run")
        for path in (tmp_path / "run").glob(name):
            damage(path)
        for arguments in (("report", "run"), quick("run", "--resume")):
            ended = bounded(*arguments)
            check_lines(ended)
        if ended.status == 0:
            model, whole = (f / "model.safetensors" for f in (tmp_path / "run", runs / "3"))
            assert model.read_bytes() == whole.read_bytes()
        shutil.rmtree(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("damage", CONTENTS + PLACES)
def test_a_damaged_recipe_or_mapping(
    bounded: Any, quick: Quick, tmp_path: Path, damage: Any
) -> None:
    recipe, mapping = tmp_path / "run" / "mine.yaml", tmp_path / "mapping.yaml"
    recipe.parent.mkdir()
    for path in (recipe, mapping):
        path.write_text(find_recipe("digits_noniid_b_fednnnn").read_text())
        damage(path)
    ended = bounded("partition", "run/mine.yaml")
    check_lines(ended)
    assert ended.status == 2
    keys = {"device_args.gpu_mapping_file": "mapping.yaml", "device_args.gpu_mapping_key": "x"}
    check_lines(bounded(*quick("out", **keys, **{"device_args.using_gpu": True})))


PARTITION = [
    *("--set", "train_args.client_num_in_total=2", "--set", "train_args.client_num_per_round=2"),
    *("--set", "data_args.min_samples=1", "--set", "data_args.data_cache_dir=data"),
    *("--set", "data_args.download=false"),
]
OWN = (
    "--set",
    "data_args.dataset=image_folder",
    "--set",
    "data_args.data_dir=data/CIFAR-10-images",
)


def partition_of(dataset: str) -> tuple[str, ...]:
    """Return the command that divides a data set; ``own`` is CIFAR-10 as a user's own images."""
    if dataset == "own":
        return (*partition_of("cifar10"), *OWN)
    return ("partition", f"{dataset}_iid_b_fedavg", *PARTITION)


def idx(*dimensions: int, body: bytes = b"") -> bytes:
    return (
        bytes([0, 0, 8, len(dimensions)]) + struct.pack(f">{len(dimensions)}I", *dimensions) + body
    )


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """MNIST and CIFAR-10, two images a part and class."""
    for part in ("train", "t10k"):
        raw = tmp_path / "data" / "MNIST" / "raw"
        raw.mkdir(parents=True, exist_ok=True)
        images, labels = idx(20, 28, 28, body=bytes(20 * 784)), idx(20, body=bytes(range(10)) * 2)
        (raw / f"{part}-images-idx3-ubyte").write_bytes(images)
        (raw / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
    for part, label in itertools.product(("train", "test"), CLASSES):
        folder = tmp_path / "data" / "CIFAR-10-images" / part / label
        folder.mkdir(parents=True)
        for number, kind in enumerate(("png", "jpg")):
            Image.new("RGB", (32, 32), (number, 9, 9)).save(folder / f"{number}.{kind}")
    return tmp_path / "data"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dataset", "name", "damages"),
    [
        ("mnist", "MNIST/raw/train-images-idx3-ubyte", CONTENTS + PLACES),
        ("mnist", "MNIST/raw/t10k-labels-idx1-ubyte.gz", CONTENTS + PLACES),
        ("mnist", "fednnnn-decoded/mnist.safetensors", CONTENTS + PLACES),
        ("mnist", "fednnnn-decoded/mnist.lock", PLACES),
        ("cifar10", "CIFAR-10-images/test/cat/0.png", CONTENTS + PLACES),
        ("cifar10", "CIFAR-10-images/train/dog/1.jpg", CONTENTS + PLACES),
        ("own", "CIFAR-10-images/train/dog/1.jpg", CONTENTS + PLACES),
    ],
)
def test_damaged_data_is_named_or_decoded_again(
    bounded: Any, data: Path, dataset: str, name: str, damages: Any
) -> None:
    arguments = partition_of(dataset)
    whole = bounded(*arguments)
    assert whole.status == 0, whole
    content = (data / name).read_bytes()
    for damage in damages:
        damage(data / name)
        ended = bounded(*arguments)
        check_lines(ended)
        if ended.status == 0:
            assert ended.stdout == whole.stdout
            assert name.startswith("fednnnn-decoded")
        else:
            assert Path(name).stem in ended.stderr
        if (data / name).is_dir():
            (data / name).rmdir()
        (data / name).unlink(missing_ok=True)
        (data / name).write_bytes(content)
    assert bounded(*arguments).stdout == whole.stdout


BATCHES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cifar-10-batches-py/data_batch_1", "cifar-10-python.tar.gz"])
def test_no_batches_where_they_should_be(bounded: Any, data: Path, name: str) -> None:
    """They come before the folders of images; pickles that lie are among the tests of data."""
    (data / "cifar-10-batches-py").mkdir()
    for batch in BATCHES if name.startswith("cifar-10-batches-py") else ():
        (data / "cifar-10-batches-py" / batch).touch()
    for damage in CONTENTS + PLACES:
        (data / name).write_bytes(gzip.compress(bytes(30)))
        damage(data / name)
        ended = bounded(*partition_of("cifar10"))
        if damage in (nowhere, circle):  # as if there were none: the images are next
            assert ended.status == 0, ended
        else:
            assert ended.check_one_line(2).startswith(f"data/{name}: ")
        if (data / name).is_dir():
            (data / name).rmdir()
        (data / name).unlink(missing_ok=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fednnnn-decoded", "MNIST/raw", "MNIST", ""])
@pytest.mark.parametrize("damage", PLACES[1:])
def test_no_folder_where_data_should_be(bounded: Any, data: Path, name: str, damage: Any) -> None:
    place = data / name
    if place.exists():
        shutil.rmtree(place)
    place.touch()
    damage(place)
    ended = bounded(*partition_of("mnist"))
    check_lines(ended)
    assert ended.status == (0 if name == "fednnnn-decoded" else 2)


def chunk(kind: bytes, content: bytes) -> bytes:
    body = kind + content
    return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))


def png(width: int, height: int, *chunks: bytes, pixels: bytes = b"") -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    data = chunk(b"IDAT", pixels or zlib.compress(bytes(32 * 97)))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + data + chunk(b"IEND", b"")


def jpeg(width: int, height: int) -> bytes:
    whole = io.BytesIO()
    Image.new("RGB", (32, 32)).save(whole, "JPEG")
    frame = whole.getvalue().index(b"\xff\xc0") + 5
    return (
        whole.getvalue()[:frame] + struct.pack(">HH", height, width) + whole.getvalue()[frame + 4 :]
    )


HUNDRED_MILLION = zlib.compress(bytes(100_000_000), 9)  # some 100 kB
BOMBS = {
    "MNIST/raw/train-images-idx3-ubyte": (
        idx(2**32 - 1, 28, 28),
        idx(20, 2**31, 2**31),
        idx(60_000, 28, 28),
    ),
    "MNIST/raw/t10k-labels-idx1-ubyte.gz": (
        gzip.compress(idx(2**32 - 1)),
        gzip.compress(idx(10_000) + bytes(10**8)),
        gzip.compress(idx(20, body=bytes(20)) + bytes(10**8)),
        b"".join(gzip.compress(b"") for _ in range(900)),
    ),
    "CIFAR-10-images/test/cat/0.png": (
        png(10**6, 10**6),
        png(2**31 - 1, 2**31 - 1),
        png(32, 32, pixels=HUNDRED_MILLION),
        png(32, 32, chunk(b"iCCP", b"x\0\0" + HUNDRED_MILLION)),
        png(32, 32, *[chunk(b"zTXt", b"x\0\0" + HUNDRED_MILLION)] * 5),
    ),
    "CIFAR-10-images/train/dog/1.jpg": (jpeg(65_535, 65_535), jpeg(32, 0), jpeg(33, 32)),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dataset", "name"),
    [
        (dataset, name)
        for name in BOMBS
        for dataset in (("mnist",) if name.startswith("MNIST") else ("cifar10", "own"))
    ],
)
def test_a_file_that_claims_or_unpacks_to_far_more_than_it_is(
    commands: Any, data: Path, tmp_path: Path, dataset: str, name: str
) -> None:
    """In 300 MB beyond what the program itself takes, and soon."""
    arguments = partition_of(dataset)
    for bomb in BOMBS[name]:
        (data / name).write_bytes(bomb)
        ended = commands.run(*arguments, folder=tmp_path, memory=300_000_000, seconds=SECONDS)
        if ended.status or HUNDRED_MILLION not in bomb:  # which may hold a whole image
            assert ended.check_one_line(2).startswith(f"data/{name}: ")
        assert ended.seconds < 5
