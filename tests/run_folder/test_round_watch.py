"""Warnings of unusual rounds, and the file for Prometheus."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from fednnnn_plugin.quantities import ClientNorms, RoundRecord, Seconds
from fednnnn_plugin.run_folder.prometheus import write_prometheus
from fednnnn_plugin.run_folder.round_watch import RoundWatch, Thresholds

USUAL = RoundRecord(
    **{"round": 7, "time": "1970-01-01T00:01:00Z", "evaluated": "average", "tested": True},
    **{"test_acc": 0.75, "test_loss": 0.5, "test_metrics": None, "served_test_acc": None},
    **{"served_test_loss": None, "served_test_metrics": None},
    **{"mean_update_norm": 3.0, "mean_client_norm": 4.0, "orthogonal_norm": 1.0},
    **{"server_update_norm": 1.0, "integrated_norm": 2.0, "layers": {}, "degenerate": False},
    **{"client_norms": ClientNorms(0.5, 1.0, 10.0), "clients": 4, "rejected": 1},
    **{"seconds": Seconds(1.0, 0.5, 0.25), "largest_share": 0.5, "clipped": 2},
)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, []),
        ({"client_norms": ClientNorms(0.5, 1.0, 10.1)}, ["client norm, 10.1, is 10"]),
        ({"client_norms": ClientNorms(0.0, 0.0, 1.0)}, []),
        ({"mean_update_norm": 3.97}, ["N/E is 0.9925"]),
        ({"mean_update_norm": 4.0, "clients": 1, "largest_share": 1.0}, ["1 clients are"]),
        ({"largest_share": 0.51}, ["one client has 51 %"]),
        ({"clients": 3}, ["3 clients are averaged; client_num_per_round is 4"]),
    ],
)
@pytest.mark.parametrize("once", [True, False])
def test_unusual_rounds_are_said(changes, said, once, caplog) -> None:
    watch = RoundWatch(4, Thresholds(10.0, 0.99, 0.5), once=once)
    for number in (7, 8):
        watch.look(replace(USUAL, **changes, round=number))
    assert len(caplog.messages) == len(said) * (1 if once else 2)
    for text, message in zip(said, caplog.messages, strict=False):
        assert message.startswith("round 7: ")
        assert text in message


def test_thresholds_are_settings(caplog) -> None:
    limits = Thresholds(norm_ratio=5.0, alignment=0.7, weight_share=0.4)
    RoundWatch(4, limits).look(USUAL)
    assert len(caplog.messages) == 3
    assert caplog.messages[2] == "round 7: one client has 50 % of the weight"
    RoundWatch(4, limits._replace(norm_ratio=math.inf)).look(USUAL)  # where updates are clipped
    assert len(caplog.messages) == 3 + 2


@pytest.mark.parametrize("accuracy", [0.75, None])
def test_prometheus_reads_the_file(accuracy, tmp_path: Path) -> None:
    """Its text format: HELP, TYPE and a sample for each name, and a line feed at the end."""
    path = tmp_path / "fednnnn.prom"
    for _ in "twice":
        write_prometheus(path, replace(USUAL, test_acc=accuracy))
    text = path.read_text()
    block = r"# HELP (\w+) [^\n]+\n# TYPE \1 gauge\n\1 (\d+(?:\.\d+)?(?:e[+-]\d+)?)\n"
    found = {name: float(value) for name, value in re.findall(block, text)}
    assert re.sub(block, "", text) == ""
    assert found.pop("fednnnn_test_accuracy", None) == accuracy
    assert found == {
        **{"fednnnn_round": 7, "fednnnn_mean_update_norm": 3, "fednnnn_mean_client_norm": 4},
        **{"fednnnn_norm_ratio": 0.75, "fednnnn_clients": 4, "fednnnn_clients_rejected": 1},
        **{"fednnnn_clients_clipped": 2, "fednnnn_round_seconds": 1.75},
        "fednnnn_round_end_seconds": 60,
    }
    assert [each.name for each in tmp_path.iterdir()] == ["fednnnn.prom"]
