"""Whatever records, settings and checkpoints hold, reading ends in a result or a `UserError`."""

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fednnnn_plugin.engine.checkpoint import CheckpointFolder
from fednnnn_plugin.engine.devices import parse_mapping, read_mapping
from fednnnn_plugin.engine.recorder import NWDARecorder
from fednnnn_plugin.engine.records import MetricsFile, Summary
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.recipe import find_recipe
from fednnnn_plugin.report import figures, tables
from fednnnn_plugin.report.groups import arrange
from fednnnn_plugin.report.runs import read_folders
from fednnnn_plugin.report.style import panels

fuzz = settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)

NORMS = {"mean_update_norm": 1.5, "mean_client_norm": 2.0, "server_update_norm": 1.0}
RECORD = {
    "round": 1,
    "test_acc": 0.5,
    "test_loss": 1.0,
    "served_test_acc": None,
    **NORMS,
    "integrated_norm": 3.0,
    "client_norms": [1.0, 2.0, 3.0],
    "layers": {"fc1": NORMS, "conv2": NORMS},
    "clients": 4,
    "rejected": 0,
    "degenerate": False,
    "seconds": {"train": 0.1, "aggregate": 0.1, "evaluate": 0.1},
}
SUMMARY = {"recipe": "r", "seed": 0, "rounds": 3, "best_test_acc": 0.5, "versions": {"torch": "2"}}
RECIPE = find_recipe("digits_noniid_b_fednnnn").read_text()

#: What resuming depends on: changed more often than the rest.
READ = ["round", "test_acc", "integrated_norm"] * 3

NUMBERS = [
    *(0, -1, 1, 10**400, -(10**400), 2**63, 0.0, -0.0, 1e-320, 1e308, math.inf, -math.inf),
    *(math.nan, True, False),
]
PLAIN = st.one_of(st.none(), st.sampled_from(NUMBERS), st.integers(-3, 9), st.text(max_size=8))
VALUES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=8,
)
RAW = st.sampled_from(
    [
        b"",
        b"\n",
        b"{}",
        b"[]",
        b"null",
        b'{"round": 1',
        b"\xff\xfe",
        b"\0" * 9,
        b"[" * 9_999,
        b"1e999",
    ]
)


@st.composite
def changed(draw: st.DrawFn, values: dict[str, Any]) -> dict[str, Any]:
    """An object with some of its values, or those inside them, replaced, missing or new."""
    values = json.loads(json.dumps(values))
    for _ in range(draw(st.integers(0, 3))):
        place: Any = values
        key = draw(st.sampled_from([*values, "new", *READ]))
        while isinstance(place.get(key), dict) and place[key] and draw(st.booleans()):
            place = place[key]
            key = draw(st.sampled_from([*place, "new"]))
        if draw(st.booleans()):
            place[key] = draw(VALUES)
        else:
            place.pop(key, None)
    return values


@st.composite
def metrics(draw: st.DrawFn) -> bytes:
    """Lines of records, most of them changed in some way, in most orders."""
    lines = []
    for number in draw(st.lists(st.integers(1, 4), max_size=5) | st.just([1, 2, 3, 4])):
        record = draw(changed(RECORD | {"round": number}) | st.just(RECORD | {"round": number}))
        line = json.dumps(record).encode() + b"\n"
        lines.append(draw(st.just(line) | RAW | st.just(line[: len(line) // 2])))
    return b"".join(lines)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "run"


def refused(read: Callable[[], object]) -> bool:
    """Tell whether the input was refused; anything but a `UserError` of single lines is a bug."""
    try:
        read()
    except UserError as error:
        lines = str(error).split("\n")
        assert all(line.isprintable() for line in lines), lines
        return True
    return False


@settings(fuzz, max_examples=60)
@given(
    content=metrics(),
    summary=changed(SUMMARY).map(json.dumps).map(str.encode) | RAW,
    recipe=st.tuples(st.integers(0, len(RECIPE)), st.integers(0, 20), st.binary(max_size=4) | RAW),
)
def test_the_report_s_readers(
    folder: Path, content: bytes, summary: bytes, recipe: tuple[int, int, bytes]
) -> None:
    folder.mkdir(exist_ok=True)
    start, length, new = recipe
    changed_recipe = RECIPE[:start].encode() + new + RECIPE[start + length :].encode()
    for name, file in (
        ("metrics.jsonl", content),
        ("summary.json", summary),
        ("recipe.yaml", changed_recipe),
    ):
        (folder / name).write_bytes(file)
    runs, shown = read_folders([folder])
    if not runs.empty:
        arranged = arrange(runs, shown)
        numbers = tables.accuracy(arranged)
        speed = tables.rounds_table(tables.rounds_to(arranged, 0.4), 0.4)
        for table in (tables.accuracy_table(numbers, "it"), speed, tables.runs_table(arranged)):
            shown += table.text().splitlines() + table.markdown().splitlines()
        (ax,) = panels(5.0, 2.6, 1, 1)
        for draw in (figures.accuracy, figures.agreement, figures.norms, figures.client_spread):
            draw(arranged, ax)
    assert all(line.isprintable() for line in shown)


@fuzz
@given(content=metrics())
def test_the_engine_s_records(folder: Path, content: bytes) -> None:
    folder.mkdir(exist_ok=True)
    file = MetricsFile(folder / "metrics.jsonl")
    file.path.write_bytes(content)
    rounds = file.rounds()
    assert rounds <= content.count(b"\n") + 1
    for last in range(rounds, -1, -1):
        file.cut(last)
        assert file.rounds() == last
        if last:
            assert all(0 <= value < math.inf for value in vars(file.progress(last)).values())
        tested = file.tested()
        assert all(1 <= number <= last and 0 <= accuracy <= 1 for number, accuracy in tested)


@fuzz
@given(summary=changed(SUMMARY).map(json.dumps).map(str.encode) | RAW)
def test_the_engine_s_summary(folder: Path, summary: bytes) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "summary.json").write_bytes(summary)
    assert isinstance(Summary.rounds_in(folder / "summary.json"), int)


@fuzz
@given(content=metrics(), number=st.integers(1, 5))
def test_the_recorder_of_norms(folder: Path, content: bytes, number: int) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / "norms.jsonl"
    path.write_bytes(content)
    zero, one = {"w": torch.zeros(2)}, {"w": torch.ones(2)}
    if not refused(lambda: NWDARecorder(path).record(zero, [one], [1.0], one, number)):
        record = json.loads(path.read_bytes().splitlines()[-1])
        assert record["round"] == number
        assert math.isfinite(record["integrated_norm"])


@fuzz
@given(cut=st.tuples(*[st.integers(0, 200)] * 2, st.binary(max_size=9)))
def test_checkpoints_under_the_right_digest(folder: Path, cut: tuple[int, int, bytes]) -> None:
    """Nobody but a writer of the folder can make them: the name holds the content's digest."""
    start, length, new = cut
    whole = safetensors.torch.save({"w": torch.zeros(3), ".momentum.w": torch.zeros(2, 2)})
    content = whole[:start] + new + whole[start + length :]
    place = folder / "checkpoint"
    place.mkdir(parents=True, exist_ok=True)
    digest = hashlib.blake2b(content, digest_size=16).hexdigest()
    (place / f"round-000003-{digest}.safetensors").write_bytes(content)
    try:
        loaded = CheckpointFolder(place).load(recorded=3)
        assert loaded is None or loaded.round == 3
        CheckpointFolder(place).save({"w": torch.zeros(1)}, 4)
        newest = CheckpointFolder(place).load(recorded=9)
        assert newest is not None
        assert newest.round == 4
    finally:
        for file in place.iterdir():
            file.unlink()


MAPPING = b"mapping:\n  host1: [2, 1]\n  host2: [1]\n"


@fuzz
@given(
    edit=st.tuples(st.integers(0, len(MAPPING)), st.integers(0, 9), st.binary(max_size=9) | RAW),
    text=st.text("gpu:;,0123456789 -e", max_size=30),
)
def test_gpu_mappings(folder: Path, edit: tuple[int, int, bytes], text: str) -> None:
    folder.mkdir(exist_ok=True)
    start, length, new = edit
    path = folder / "mapping.yaml"
    path.write_bytes(MAPPING[:start] + new + MAPPING[start + length :])
    for read in (lambda: read_mapping(path, "mapping"), lambda: parse_mapping(text)):
        if not refused(read):
            assert all(isinstance(gpu, int) and gpu >= 0 for gpu in read())
