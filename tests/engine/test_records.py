"""``metrics.jsonl``: what is on record, and cutting it back."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fednnnn_plugin.engine.records import LayerRecord, MetricsFile, Progress, RoundRecord, Seconds


def record(number: int, accuracy: float | None = 0.5) -> RoundRecord:
    return RoundRecord(
        round=number,
        evaluated="average",
        test_metrics=None,
        test_acc=accuracy,
        test_loss=None,
        served_test_acc=None,
        mean_update_norm=1.5,
        mean_client_norm=2.5,
        server_update_norm=3.5,
        integrated_norm=3.5 * number,
        client_norms=(1.0, 2.0, 3.0),
        layers={"fc": LayerRecord(1.5, 2.5, 3.5)},
        clients=4,
        rejected=1,
        degenerate=False,
        seconds=Seconds(1.0, 2.0, 3.0),
    )


REST = b'"integrated_norm": 1, "seconds": {"train": 1}'


@pytest.fixture
def metrics(tmp_path: Path) -> MetricsFile:
    """Holds rounds 1 to 3, the second one untested."""
    file = MetricsFile(tmp_path / "metrics.jsonl")
    for number in (1, 2, 3):
        file.append(record(number, None if number == 2 else number / 10))
    return file


def lines(metrics: MetricsFile) -> list[bytes]:
    return metrics.path.read_bytes().splitlines(keepends=True)


def test_a_line_a_round(metrics: MetricsFile) -> None:
    assert metrics.rounds() == 3
    assert metrics.tested() == [(1, 0.1), (3, 0.3)]
    assert metrics.progress(2) == Progress(2, 7.0, 12.0)
    first = json.loads(lines(metrics)[0])
    assert list(first) == [
        *("round", "evaluated", "test_acc", "test_loss", "test_metrics", "served_test_acc"),
        *("mean_update_norm", "mean_client_norm", "server_update_norm", "integrated_norm"),
        *("client_norms", "layers", "clients", "rejected", "degenerate", "seconds"),
    ]
    assert first["client_norms"] == [1.0, 2.0, 3.0]
    assert first["layers"]["fc"] == {
        "mean_update_norm": 1.5,
        "mean_client_norm": 2.5,
        "server_update_norm": 3.5,
    }
    assert first["seconds"] == {"train": 1.0, "aggregate": 2.0, "evaluate": 3.0}


def test_a_missing_file_holds_no_round(tmp_path: Path) -> None:
    assert MetricsFile(tmp_path / "none.jsonl").rounds() == 0


@pytest.mark.parametrize("last", [0, 1, 3])
def test_cutting_back_leaves_the_first_rounds_as_they_were(metrics: MetricsFile, last: int) -> None:
    before = lines(metrics)
    with metrics.path.open("ab") as file:
        file.write(b'{"round": 4, "test_')  # a process died here
    metrics.cut(last)
    assert lines(metrics) == before[:last]


@pytest.mark.parametrize(
    ("line", "whole"),
    [
        (b"", 1),
        (b"\0" * 40 + b"\n", 1),
        (b'{"round": 2, "test_acc": 0, %b}\n' % REST, 3),
        (b'{"round": 2, %b}\n' % REST, 1),
        (b'{"round": 2, "test_acc": null, "integrated_norm": 1}\n', 1),
        (b'{"round": 2, "test_acc": null, "integrated_norm": NaN, "seconds": {}}\n', 1),
        (b'{"round": 2, "test_acc": 0.5, %b}' % REST, 1),  # it runs into the next line
        (b'{"round": 3, "test_acc": 0.5, %b}\n' % REST, 1),
        (b'{"round": 2, "test_acc": "0.5", %b}\n' % REST, 1),
        (b"[2]\n", 1),
        (b"\xff\xfe\n", 1),
        (b"[" * 100_000 + b"\n", 1),
    ],
)
def test_only_whole_lines_from_the_first_on_are_on_record(
    metrics: MetricsFile, line: bytes, whole: int
) -> None:
    first, _, third = lines(metrics)
    metrics.path.write_bytes(first + line + third)
    assert metrics.rounds() == whole


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200), kept=st.integers(0, 3))
def test_whatever_follows_does_not_change_what_is_on_record(
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


def test_a_number_that_json_has_not_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        record(1, float("nan")).to_json()


def test_a_line_without_end_is_not_read_into_memory() -> None:
    assert MetricsFile(Path("/dev/zero")).rounds() == 0


def test_a_full_disk_is_reported_with_the_files_name() -> None:
    full = MetricsFile(Path("/dev/full"))
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        full.append(record(1))
