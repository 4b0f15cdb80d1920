"""``metrics.jsonl`` and ``summary.json``: what is on record, and cutting it back."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fednnnn_plugin.engine.records import MetricsFile, Summary

REST = b'"integrated_norm": 1, "seconds": {"train": 1}'


@pytest.fixture
def metrics(tmp_path: Path, make_record: Callable[..., object]) -> MetricsFile:
    """Holds rounds 1 to 3, the second one untested."""
    file = MetricsFile(tmp_path / "metrics.jsonl")
    for number in (1, 2, 3):
        file.append(make_record(number, test_acc=None if number == 2 else number / 10))
    return file


def lines(metrics: MetricsFile) -> list[bytes]:
    return metrics.path.read_bytes().splitlines(keepends=True)


def test_metrics_file_has_a_line_a_round(metrics: MetricsFile) -> None:
    assert metrics.rounds() == 3
    assert metrics.results() == (0.3, 3, 0.3)
    assert metrics.until(2) == (4.0, 2 * 21.25)


@pytest.mark.parametrize(
    ("line", "whole"),
    [
        (b'{"round": 2, "test_acc": 0, %b}\n' % REST, 3),
        (b'{"round": 2, %b}\n' % REST, 1),
        (b'{"round": 2, "test_acc": null, "integrated_norm": NaN, "seconds": {}}\n', 1),
        (b'{"round": 2, "test_acc": 0.5, %b}' % REST, 1),  # it runs into the next line
        (b'{"round": 2, "test_acc": 1.5, %b}\n' % REST, 1),
        (b'{"round": 2, "test_acc": 0, "integrated_norm": 1, "seconds": {"train": "1"}}\n', 1),
        (b'{"round": 2, "test_acc": 0, "integrated_norm": 1, "seconds": []}\n', 1),
        (b'{"round": 2, "test_acc": 0, "integrated_norm": -1, "seconds": {"train": 1}}\n', 1),
        (b'{"round": 2, "test_acc": 0, "integrated_norm": 1e308, "seconds": {"train": 1}}\n', 1),
        (b'{"round": 2, "test_acc": 0, %b, "mean_client_norm": -1}\n' % REST, 1),
        (b'{"round": 2, "test_acc": 0, %b, "layers": {"fc": {"N": 1e999}}}\n' % REST, 1),
        (b"[" * 100_000 + b"\n", 1),
    ],
)
def test_metrics_file_counts_whole_lines_only(
    metrics: MetricsFile, line: bytes, whole: int
) -> None:
    first, _, third = lines(metrics)
    metrics.path.write_bytes(first + line + third)
    assert metrics.rounds() == whole


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


def test_metrics_file_without_end_or_room(make_record: Callable[..., object]) -> None:
    with pytest.raises(ValueError, match="JSON"):
        make_record(1, test_acc=float("nan")).to_json()
    assert MetricsFile(Path("/dev/zero")).rounds() == 0  # without reading it into memory
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        MetricsFile(Path("/dev/full")).append(make_record(1))


def test_summary_that_is_not_whole_is_none(tmp_path: Path) -> None:
    """Nor is one of another version: the run then goes on from its checkpoint, and writes one."""
    path = tmp_path / "summary.json"
    summary = Summary("recipe", 0, 3, 0.5, 2, None, "sp", 1, "cpu", 8, 1.5, {"torch": "2"})
    summary.write(path)
    assert (Summary.read(path), Summary.rounds_in(path)) == (summary, 3)
    for harm in ("", "[", '{"rounds": 3}', path.read_text().replace("3", '"3"')):
        path.write_text(harm)
        assert (Summary.read(path), Summary.rounds_in(path)) == (None, 0)
