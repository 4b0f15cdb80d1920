"""Norm records of an aggregation that is not ours."""

import json
import math
from pathlib import Path

import pytest
import torch

import fednnnn_plugin as fp


def state(*values: float) -> dict[str, torch.Tensor]:
    return {"layer.weight": torch.tensor(values)}


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_round_by_hand(tmp_path) -> None:
    """S = (1.5, 2): N = 2.5, E = 3.5; the server moved by (0.3, 0.4)."""
    path = tmp_path / "metrics.jsonl"
    recorder = fp.NWDARecorder(path)
    clients = [state(3.0, 0.0), state(0.0, 4.0)]
    recorder.record(state(0.0, 0.0), iter(clients), [2.0, 2.0], state(0.3, 0.4), 1)
    recorder.record(state(0.3, 0.4), clients[:1], [1], state(0.3, 1.4), 2)
    first, second = lines(path)
    norms = {
        "mean_update_norm": 2.5,
        "mean_client_norm": 3.5,
        "server_update_norm": pytest.approx(0.5),
    }
    assert {key: first[key] for key in norms} == norms
    assert first["layers"] == {"layer": norms}
    assert first["client_norms"] == [3.0, 3.5, 4.0]
    assert (first["round"], first["clients"], first["rejected"]) == (1, 2, 0)
    assert (first["test_acc"], first["test_loss"], first["degenerate"]) == (None, None, False)
    assert second["integrated_norm"] == pytest.approx(1.5)


def test_the_lines_are_those_of_the_engine(example, told, tmp_path) -> None:
    """The same models recorded from outside give the same norms, to the bit."""
    states = []

    class Kept(told):
        def train(self, client, state, round_number):
            states.append((dict(state), super().train(client, state, round_number)))
            return states[-1][1]

    example.follow(Kept(lambda _: example.hand), comm_round=1)
    served = {"w": torch.tensor(example.served()["w"])}
    recorder = fp.NWDARecorder(tmp_path / "metrics.jsonl")
    recorder.record(states[0][0], [state for _, state in states], [1, 1], served, 1)
    unknown = ("evaluated", "test_acc", "test_loss", "seconds")
    [found], [expected] = lines(tmp_path / "metrics.jsonl"), example.records()
    assert found | dict.fromkeys(unknown) == expected | dict.fromkeys(unknown)


def test_what_is_no_parameter_or_a_tied_one_does_not_count(tmp_path) -> None:
    path = tmp_path / "metrics.jsonl"
    weight = torch.zeros(2)
    w_t = {
        "encoder.weight": weight,
        "decoder.weight": weight,
        "bn.running_mean": torch.zeros(2),
        "bn.num_batches_tracked": torch.tensor(0),
    }
    moved = {name: t + torch.tensor([3, 4]) if t.ndim else t + 1 for name, t in w_t.items()}
    fp.NWDARecorder(path).record(w_t, [moved], [1.0], moved, 1)
    fp.NWDARecorder(tmp_path / "named", ["bn.running_mean"]).record(w_t, [moved], [1], moved, 1)
    for file, module in ((path, "encoder"), (tmp_path / "named", "bn")):
        [line] = lines(file)
        assert line["mean_update_norm"] == line["server_update_norm"] == 5.0
        assert line["layers"].keys() == {module}


def test_clients_that_are_not_finite_are_counted(tmp_path) -> None:
    path = tmp_path / "metrics.jsonl"
    clients = [state(math.nan, 0.0), state(3.0, 4.0)]
    fp.NWDARecorder(path).record(state(0.0, 0.0), clients, [1, 1], state(0.0, 0.0), 1)
    [line] = lines(path)
    assert (line["clients"], line["rejected"], line["mean_client_norm"]) == (1, 1, 5.0)
    opposite = [state(1.0, 0.0), state(-1.0, 0.0)]
    fp.NWDARecorder(path).record(state(0.0, 0.0), opposite, [1, 1], state(0.0, 0.0), 2)
    assert [line["degenerate"] for line in lines(path)] == [False, True]


def test_a_file_is_continued_and_a_round_again_replaces_it(tmp_path) -> None:
    path = tmp_path / "metrics.jsonl"
    for number in (1, 2, 3, 2):
        fp.NWDARecorder(path).record(
            state(0.0, 0.0), [state(1.0, 0.0)], [1.0], state(0.0, float(number)), number
        )
    assert [line["round"] for line in lines(path)] == [1, 2]
    assert [line["integrated_norm"] for line in lines(path)] == [1.0, 3.0]
    whole = path.read_text()
    path.write_text(whole + whole[:30])  # a process that died while writing
    fp.NWDARecorder(path).record(state(0.0, 0.0), [state(1.0, 0.0)], [1.0], state(0.0, 0.0), 5)
    assert path.read_text().startswith(whole)
    assert [line["round"] for line in lines(path)] == [1, 2, 5]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"round": 0}, "round: 0: must be a whole number of at least 1"),
        ({"weights": [1.0, 1.0]}, "round 1: zip"),
        ({"clients": [{}]}, "round 1: client model: missing entries"),
        ({"clients": [state(math.inf, 0.0)]}, "no client update to average"),
        ({"served_state": state(1.0)}, "served_state: layer.weight: missing, or of another shape"),
        ({"test_acc": 1.5}, "test_acc: 1.5"),
        ({"served_state": state(math.nan, 1.0)}, "served_state: not finite"),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_is_written(values, words, tmp_path) -> None:
    arguments = {
        "global_state": state(0.0, 0.0),
        "clients": [state(1.0, 0.0)],
        "weights": [1.0],
        "served_state": state(1.0, 0.0),
        "round": 1,
    }
    with pytest.raises(fp.UserError, match=words):
        fp.NWDARecorder(tmp_path / "metrics.jsonl").record(**arguments | values)
    assert not (tmp_path / "metrics.jsonl").exists()


def test_another_file_or_name_is_refused(tmp_path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("by hand\n")
    with pytest.raises(fp.UserError, match=r"not a metrics\.jsonl file"):
        fp.NWDARecorder(path).record(state(0.0), [state(1.0)], [1.0], state(1.0), 1)
    with pytest.raises(
        fp.UserError, match=r"trainable: \['layer\.bias'\]: not in the global state"
    ):
        fp.NWDARecorder(path, ["layer.bias"]).record(state(0.0), [], [], state(1.0), 1)
