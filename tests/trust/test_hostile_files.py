"""Run folders and recipes of broken, hostile or no files: one line and status 2, or a fall-back."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fednnnn_plugin.errors import MAX_LINES
from fednnnn_plugin.recipe import find_recipe

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
