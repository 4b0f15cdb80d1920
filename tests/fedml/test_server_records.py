"""What a cross-silo server says and keeps of its rounds, and the model that it ends with."""

import json
import logging
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.testing import assert_close

import fednnnn_plugin as fp
from fednnnn_plugin.fedml.tester import evaluation_of

LONG = 30.0


def model() -> nn.Module:
    net = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(net.weight)
    return net


def clients(server, *updates: tuple[float, float]) -> list:
    """FedML's list of models that moved so from what is served."""
    w_t = server.get_model_params()["weight"]
    return [(1, OrderedDict(weight=w_t + torch.tensor([update]))) for update in updates]


def data(label: int) -> list:
    """A batch whose labels a model of one output always has right, or never."""
    return [(torch.ones(4, 2), torch.full((4,), label))]


@pytest.fixture
def server(silo, tmp_path):
    def build(start: int = 0, **values) -> fp.FedNNNNAggregator:
        keys = {"metrics_path": str(tmp_path / "run"), "start_round": start, "comm_round": 10}
        keys["server_state_path"] = str(tmp_path / "state")
        keys |= {"learning_rate": 0.1, "epochs": 2, "client_id_list": "[7, 8, 9]"}
        return silo(model(), **keys | values)

    return build


def records(tmp_path: Path) -> list[dict]:
    return [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]


def test_round_is_said_and_kept_by_hand(server, play, tmp_path, caplog) -> None:
    """Δ = (3, 0), (0, 4) and one of norm 30, clipped to 6: S = (3, 10/3), E = 13/3."""
    caplog.set_level(logging.INFO, "fednnnn_plugin")
    silo = server(max_client_norm=6.0)
    play(silo, clients(silo, (3.0, 0.0), (0.0, 4.0), (LONG * 0.8, LONG * 0.6)))
    assert not [line for line in caplog.messages if line.startswith("round 1:")]
    silo.test(data(0), torch.device("cpu"), silo.args)
    [record] = records(tmp_path)
    assert record["mean_client_norm"] == pytest.approx(13 / 3)
    update = torch.tensor([3 + 4.8, 4 + 3.6]).norm().item() / 3
    assert record["mean_update_norm"] == pytest.approx(update)
    assert record["client_norms"] == pytest.approx([3, 4, 6])
    assert (record["test_acc"], record["evaluated"]) == (1.0, "average")
    [line] = [line for line in caplog.messages if line.startswith("round 1:")]
    for part in ("accuracy 1.0000", f"N/E {update * 3 / 13:.3f}", "3, 4, 6", "3 clients accepted"):
        assert part in line
    assert "rank 9 clipped" in line
    assert [line for line in caplog.messages if "beta 0.5" in line and "state: " in line]


def test_client_of_just_the_bound_is_not_clipped(server, play, caplog) -> None:
    caplog.set_level(logging.INFO, "fednnnn_plugin")
    silo = server(max_client_norm=5.0, frequency_of_the_test=0)
    play(silo, clients(silo, (3.0, 4.0), (6.0, 8.0)))
    [line] = [line for line in caplog.messages if line.startswith("round 1:")]
    assert "client norms 5, 5, 5" in line
    assert [rank for rank in (7, 8) if f"rank {rank} clipped" in line] == [8]


def test_untested_round_names_who_was_rejected(server, play, tmp_path, caplog) -> None:
    caplog.set_level(logging.INFO, "fednnnn_plugin")
    silo = server(frequency_of_the_test=2)
    for _ in range(2):  # FedML tests after the first
        play(silo, clients(silo, (3.0, 0.0), (0.0, float("nan"))))
    [line] = [line for line in caplog.messages if line.startswith("round 2:") and "N/E" in line]
    assert "accuracy" not in line
    assert "1 rejected; " in line
    assert "1 clients accepted; rank 8 rejected: not finite" in line
    assert [record["test_acc"] for record in records(tmp_path)] == [None, None]


def test_records_continue_without_gap_or_double_line(server, play, tmp_path) -> None:
    """Killed after a record, before its state: the round is done again."""
    whole = [silo := server()]
    for _ in range(3):
        play(silo, clients(silo, (3.0, 0.0), (0.0, 4.0)))
    expected = [record | {"seconds": None} for record in records(tmp_path)]
    for name in ("run/metrics.jsonl", "state"):
        (tmp_path / name).unlink()
    for done in range(3):
        whole.append(silo := server(done))
        play(silo, clients(silo, (3.0, 0.0), (0.0, 4.0)))
        state = (tmp_path / "state").read_bytes()
        if done < 2:
            play(silo, clients(silo, (1.0, 1.0)))
            (tmp_path / "state").write_bytes(state)
    assert [record | {"seconds": None} for record in records(tmp_path)] == expected


@pytest.mark.parametrize(("done", "start"), [(1, 0), (0, 1)])
def test_records_of_other_rounds_are_refused(server, play, tmp_path, done, start) -> None:
    silo = server()
    play(silo, clients(silo, (3.0, 0.0)))
    if done == 0:
        (tmp_path / "run/metrics.jsonl").unlink()
    with pytest.raises(fp.UserError, match=r"metrics_path.*start_round"):
        server(start, server_state_path=None if start == 0 else str(tmp_path / "state"))


def test_report_reads_the_folder(server, play, tmp_path) -> None:
    silo = server()
    for _ in range(2):
        play(silo, clients(silo, (3.0, 0.0), (0.0, 4.0)))
        silo.test(data(0), torch.device("cpu"), silo.args)
    runs = fp.read_runs(tmp_path / "run")
    assert runs["test_acc"].tolist() == [1.0, 1.0]
    assert set(runs["method"]) == {"FedNNNN"}
    assert set(runs["learning_rate"]) == {0.1}
    assert "batch_size" in runs


def test_last_round_hands_over_the_evaluation_model(server, play, tmp_path) -> None:
    silo = server(comm_round=2)
    first, _ = play(silo, clients(silo, (3.0, 0.0), (0.0, 4.0)))
    assert_close(first["weight"], 0.5 * 3.5 / 2.5 * torch.tensor([[1.5, 2.0]]))
    last, _ = play(silo, clients(silo, (3.0, 0.0), (0.0, 4.0)))
    average = first["weight"] + torch.tensor([[1.5, 2.0]])
    assert_close(last["weight"], average)
    assert_close(silo.model.weight.data, average)
    assert_close(silo.evaluation_state_dict()["weight"], average)
    following = 1.5 * (first["weight"]) + first["weight"]  # d ← d / 2 + d₁, with d₁ = w₁
    assert_close(load_file(tmp_path / "state")["weight"], following)


def test_client_process_asks_for_no_files(server, tmp_path) -> None:
    server(5, role="client")
    assert not [*tmp_path.iterdir()]


def test_server_without_test_data_does_not_test(server, play, caplog) -> None:
    silo = server()
    play(silo, clients(silo, (3.0, 0.0)))
    assert silo.test(None, torch.device("cpu"), silo.args) == (None,) * 4
    assert "no test data" in caplog.text


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ((0.5, 1.25, None, None), (0.5, 1.25, None)),
        (torch.tensor(0.5), (0.5, None, None)),
        ({"auc": 0.75, "name": "x"}, (None, None, {"auc": 0.75})),
        ((12.0, float("nan")), (None, None, None)),
        (None, (None, None, None)),
        ("done", (None, None, None)),
        (True, (None, None, None)),
    ],
)
def test_tester_s_result_is_read(found, expected) -> None:
    evaluation = evaluation_of(found)
    assert (evaluation.accuracy, evaluation.loss, evaluation.metrics) == expected
