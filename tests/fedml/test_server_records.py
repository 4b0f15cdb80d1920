"""What a cross-silo server says and keeps of its rounds, and the model that it ends with."""

import json
import logging
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

import fednnnn_plugin as fp

from .rounds import CPU, moved, play, refused, silo

TWO = ((3.0, 0.0), (0.0, 4.0))
#: A batch whose labels a model of one output always has right.
DATA = [(torch.ones(4, 2), torch.zeros(4, dtype=torch.int64))]


@pytest.fixture
def server(tmp_path):
    def build(start: int = 0, **values) -> fp.FedNNNNAggregator:
        keys = {"metrics_path": str(tmp_path / "run"), "start_round": start, "comm_round": 10}
        keys["server_state_path"] = str(tmp_path / "state")
        keys |= {"learning_rate": 0.1, "epochs": 2, "client_id_list": "[7, 8, 9, 10]"}
        return silo(**keys | values)

    return build


def records(tmp_path: Path) -> list[dict]:
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    return [json.loads(line) | {"seconds": None} for line in lines]


def test_rounds_are_said_and_kept_by_hand(server, tmp_path, caplog) -> None:
    """Of (3, 4), (0, 1), (8, 6) clipped to 5 and one not finite: S = (7, 8) / 3, E = 11 / 3."""
    caplog.set_level(logging.INFO, "fednnnn_plugin")
    silo = server(max_client_norm=5.0, frequency_of_the_test=2)
    updates = ((3.0, 4.0), (0.0, 1.0), (8.0, 6.0), (0.0, math.nan))
    play(silo, moved(silo, *updates))
    assert not [line for line in caplog.messages if "N/E" in line]
    silo.test(DATA, CPU, silo.args)
    play(silo, moved(silo, *updates))  # which FedML does not test
    first, second = records(tmp_path)
    assert first["mean_client_norm"] == pytest.approx(11 / 3)
    assert first["mean_update_norm"] == pytest.approx(math.sqrt(49 + 64) / 3)
    assert first["client_norms"] == pytest.approx([1, 5, 5])
    assert (first["test_acc"], first["evaluated"]) == (1.0, "average")
    assert second["test_acc"] is None
    tested, untested = (line for line in caplog.messages if "N/E" in line)
    for part in (f"N/E {math.sqrt(113) / 11:.3f}", "1, 5, 5", "1 rejected", "3 clients accepted"):
        assert part in tested
        assert part in untested
    assert ("accuracy 1.0000" in tested, "accuracy" in untested) == (True, False)
    assert [rank for rank in (7, 8, 9, 10) if f"rank {rank} clipped" in tested] == [9]
    assert "rank 10 rejected: not finite" in tested
    assert untested.count("clipped") == 1  # of this round alone
    assert [line for line in caplog.messages if "beta 0.5" in line and "state: " in line]


def test_records_continue_without_gap_or_double_line(server, tmp_path) -> None:
    """Killed after a record, before its state: the round is done again."""
    silo = server()
    for _ in range(3):
        play(silo, moved(silo, *TWO))
    expected = records(tmp_path)
    for name in ("run/metrics.jsonl", "state"):
        (tmp_path / name).unlink()
    for done in range(3):
        silo = server(done)
        play(silo, moved(silo, *TWO))
        state = (tmp_path / "state").read_bytes()
        if done < 2:
            play(silo, moved(silo, (1.0, 1.0)))
            (tmp_path / "state").write_bytes(state)
    assert records(tmp_path) == expected


@pytest.mark.parametrize(("done", "start"), [(1, 0), (0, 1)])
def test_records_of_other_rounds_are_refused(server, tmp_path, done, start) -> None:
    silo = server()
    play(silo, moved(silo, (3.0, 0.0)))
    if done == 0:
        (tmp_path / "run/metrics.jsonl").unlink()
    with refused("metrics_path.*start_round"):
        server(start, server_state_path=None if start == 0 else str(tmp_path / "state"))


def test_records_are_read_by_the_report(server, tmp_path) -> None:
    silo = server(epochs=None)  # a key of the clients
    play(silo, moved(silo, *TWO))
    silo.test(DATA, CPU, silo.args)
    assert "epochs" not in (tmp_path / "run/recipe.yaml").read_text()
    runs = fp.read_runs(tmp_path / "run")
    [row] = runs.to_dict("records")
    assert (row["test_acc"], row["method"], row["learning_rate"]) == (1.0, "FedNNNN", 0.1)
    assert "batch_size" in row


def test_last_round_hands_over_the_evaluation_model(server, tmp_path) -> None:
    silo = server(comm_round=2)
    first, _ = play(silo, moved(silo, *TWO))
    assert_close(first["weight"], 0.5 * 3.5 / 2.5 * torch.tensor([[1.5, 2.0]]))
    last, _ = play(silo, moved(silo, *TWO))
    average = first["weight"] + torch.tensor([[1.5, 2.0]])
    for found in (last, silo.evaluation_state_dict(), silo.model.state_dict()):
        assert_close(found["weight"], average)
    following = 1.5 * first["weight"] + first["weight"]  # d ← d / 2 + d₁, with d₁ = w₁
    assert_close(load_file(tmp_path / "state")["weight"], following)


def test_client_process_keeps_no_files(server, tmp_path) -> None:
    server(5, role="client")
    assert not [*tmp_path.iterdir()]


def test_server_without_test_data_does_not_test(server, caplog) -> None:
    silo = server()
    play(silo, moved(silo, (3.0, 0.0)))
    assert silo.test(None, CPU, silo.args) == (None,) * 4
    assert "no test data" in caplog.text
