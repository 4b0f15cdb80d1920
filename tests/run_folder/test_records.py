"""``metrics.jsonl``, ``summary.json`` and checkpoints: what of them is whole, after any damage."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.quantities import NOT_ALWAYS, NUMBERS, LayerRecord, columns, read_record
from fednnnn_plugin.run_folder.checkpoint import load_checkpoint, save_checkpoint
from fednnnn_plugin.run_folder.records import MetricsFile

from .test_round_watch import USUAL

OTHER = b'{"round": 2, "test_acc": 0, "integrated_norm": 1, "seconds": {"train": 1}'
NORMS = (b"-1", b"NaN")
MANY = 10**6
in_one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def metrics(tmp_path: Path) -> MetricsFile:
    """Holds rounds 1 to 3, the second one untested."""
    seconds = {"train": 20.0, "aggregate": 1.0, "evaluate": 0.25}
    with (tmp_path / "metrics.jsonl").open("w") as file:
        for number, accuracy in ((1, 0.1), (2, None), (3, 0.3)):
            line = {"round": number, "test_acc": accuracy, "integrated_norm": 2.0 * number}
            file.write(json.dumps(line | {"seconds": seconds}) + "\n")
    return MetricsFile(tmp_path / "metrics.jsonl")


def lines(metrics: MetricsFile) -> list[bytes]:
    return metrics.path.read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize(
    ("line", "whole"),
    [
        (OTHER + b"}\n", 2),
        (OTHER + b"}", 1),  # it runs into the next line
        (OTHER.replace(b'"integrated_norm": 1, ', b"") + b"}\n", 1),
        (OTHER.replace(b'"test_acc": 0', b'"test_acc": 1.5') + b"}\n", 1),
        *((OTHER.replace(b'norm": 1', b'norm": ' + norm) + b"}\n", 1) for norm in NORMS),
        (OTHER + b', "mean_client_norm": -1}\n', 1),
        (OTHER + b', "layers": {"fc": {"mean_update_norm": 1e999}}}\n', 1),
        (b"[" * 100_000 + b"\n", 1),
    ],
)
def test_metrics_file_counts_whole_lines_only(
    metrics: MetricsFile, line: bytes, whole: int
) -> None:
    first, _, third = lines(metrics)
    metrics.path.write_bytes(first + line + third[:-1])
    assert metrics.rounds() == whole


@in_one_folder
@given(content=st.binary(max_size=200), kept=st.integers(0, 3))
def test_metrics_file_is_cut_back_to_whole_lines(
    metrics: MetricsFile, content: bytes, kept: int
) -> None:
    before = lines(metrics)
    metrics.path.write_bytes(b"".join(before[:kept]) + content)
    try:
        assert metrics.rounds() >= kept
        metrics.cut(kept)
        assert lines(metrics) == before[:kept]
    finally:
        metrics.path.write_bytes(b"".join(before))


def test_metric_may_have_the_name_of_another_quantity() -> None:
    """The quantity keeps its tag and its column."""
    metrics = {"Loss": 42.0, "client_norms": 3.0, "by_client": 4.0}
    record = replace(USUAL, test_loss=0.5, test_metrics=metrics)
    shown = {"Test/Loss": 0.5, "Test/metrics/Loss": 42.0, "NWDA/client_norm_max": 10.0}
    shown |= {"Test/client_norms": 3.0, "Test/by_client": 4.0}
    assert record.tagged().items() >= shown.items()
    row = columns(read_record(record.to_json().encode()))
    assert {name: row[f"test_metrics.{name}"] for name in metrics} == metrics
    assert (row["client_norm_max"], row["test_loss"]) == (10.0, 0.5)


def test_numbers_of_a_round_reach_trackers_and_tables() -> None:
    norms = {"mean_update_norm": 0.5, "mean_client_norm": 1.0, "server_update_norm": 0.25}
    changes = norms | {"test_loss": None, "test_metrics": {"f1": 0.5}, "orthogonal_norm": 0.125}
    record = replace(USUAL, **changes, layers={"a.fc": LayerRecord(**norms)})
    shown = {"Test/Acc": 0.75, "Test/f1": 0.5, "NWDA/a.fc/mean_client_norm": 1.0}
    shown |= {f"NWDA/{name}": norm for name, norm in norms.items()}
    shown |= {"NWDA/orthogonal_norm": 0.125, "NWDA/rejected": 1.0, "NWDA/client_norm_max": 10.0}
    assert record.tagged().items() >= shown.items()
    assert not [name for name in record.tagged() if "round" in name or "seconds" in name]
    read = read_record(record.to_json().encode())
    row = columns(read)
    assert row.keys() >= NUMBERS.keys() - NOT_ALWAYS
    assert (row["orthogonal_norm"], row["seconds.train"], row["clients"]) == (0.125, 1.0, 4)
    assert row["layers.a.fc.server_update_norm"] == 0.25
    older = read_record(b'{"round": 1, "schema": 9, "layers": {"fc": {"new_norm": 1.0}}}')
    assert (older["round"], older["orthogonal_norm"]) == (1, None)


def server(number: int) -> dict[str, torch.Tensor]:
    return {"w": torch.full((3,), float(number)), "steps": torch.tensor(number)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Holds the checkpoints of rounds 1 and 2."""
    for number in (1, 2):
        save_checkpoint(tmp_path / "checkpoint", server(number), number)
    return tmp_path / "checkpoint"


def loaded(folder: Path, recorded: int = MANY) -> int:
    """The round of the checkpoint that is loaded, which is as it was saved."""
    checkpoint = load_checkpoint(folder, recorded)
    torch.testing.assert_close(checkpoint.server, server(checkpoint.round), rtol=0, atol=0)
    return checkpoint.round


def test_checkpoints_of_the_newest_two_rounds_are_kept(folder: Path) -> None:
    """Those are of a run that was cut back; they must not come after the one that goes on."""
    (folder / "round-9.safetensors").write_text("mine")
    for number, left in ((5, [2, 5]), (1_000_000, [5, 1_000_000]), (3, [3]), (4, [3, 4])):
        save_checkpoint(folder, server(number), number)
        assert loaded(folder) == number
        assert sorted(path.name for path in folder.iterdir()) == [
            *(f"round-{of:06}.safetensors" for of in left),
            "round-9.safetensors",
        ]
    assert (folder / "round-9.safetensors").read_text() == "mine"


def test_checkpoint_beyond_the_record_is_passed_over(folder: Path) -> None:
    assert [loaded(folder, 2), loaded(folder, 1)] == [2, 1]
    with pytest.raises(UserError, match=r"metrics\.jsonl: line 1 is damaged or missing"):
        load_checkpoint(folder, 0)


@in_one_folder
@given(start=st.integers(0, 200), length=st.integers(0, 200), new=st.binary(max_size=60))
@example(start=-2, length=0, new=b"77")  # other numbers
def test_checkpoint_with_any_damage_is_passed_over(
    folder: Path, start: int, length: int, new: bytes
) -> None:
    newest = max(folder.iterdir())
    content = newest.read_bytes()
    changed = content[:start] + new + (content[start + length :] if start >= 0 else b"")
    newest.write_bytes(changed)
    try:
        assert loaded(folder) == (2 if changed == content else 1)
    finally:
        newest.write_bytes(content)
