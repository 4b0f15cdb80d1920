"""Norm records of an aggregation that is not ours."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fednnnn_plugin as fp

from ..tiny import read_records


def state(*values: float) -> dict[str, torch.Tensor]:
    return {"layer.weight": torch.tensor(values)}


@pytest.fixture
def record(tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Record a round of one client that moved by (1, 0), as the server did; read the file."""

    def add(number: Any, names: Any = None, **given: Any) -> list[dict[str, Any]]:
        usual = {"global_state": state(0.0, 0.0), "clients": [state(1.0, 0.0)], "round": number}
        usual |= {"served_state": state(1.0, 0.0), "weights": [1.0]}
        fp.NWDARecorder(tmp_path / "metrics.jsonl", names).record(**usual | given)
        return read_records(tmp_path)

    return add


def test_recorder_round_by_hand(record: Any) -> None:
    """S = (1.5, 2): N = 2.5, E = 3.5; the server moved by (0.3, 0.4)."""
    clients = iter([state(3.0, 0.0), state(0.0, 4.0)])
    [line] = record(1, clients=clients, weights=[2.0, 2.0], served_state=state(0.3, 0.4))
    norms = {"mean_update_norm": 2.5, "mean_client_norm": 3.5}
    norms["server_update_norm"] = pytest.approx(0.5)
    assert line | norms | {"layers": {"layer": norms}, "client_norms": [3.0, 3.5, 4.0]} == line
    assert (line["round"], line["clients"], line["rejected"]) == (1, 2, 0)
    assert (line["test_acc"], line["test_loss"], line["degenerate"]) == (None, None, False)
    # The next one's numbers are NumPy's and torch's.
    numbers = {"test_acc": np.float32(0.5), "test_loss": torch.tensor(2.0)}
    line = record(np.int64(2), **numbers)[1]
    assert line["integrated_norm"] == pytest.approx(1.5)
    assert (line["round"], line["test_acc"], line["test_loss"]) == (2, 0.5, 2.0)


def test_recorder_marks_the_rounds_that_were_tested(tmp_path: Path, record: Any) -> None:
    """The final value is that of round 3; of a round 5 with a loss that is not finite it is NaN."""
    for number in (1, 2, 3, 4):
        lines = record(number, test_acc=0.75 if number == 3 else None)
    assert [line["tested"] for line in lines] == [False, False, True, False]
    assert fp.summary(fp.read_runs(tmp_path))["final"].item() == 0.75
    assert record(5, test_loss=math.inf)[-1]["tested"]
    assert math.isnan(fp.summary(fp.read_runs(tmp_path))["final"].item())


def test_recorder_counts_parameters_once(record: Any) -> None:
    w_t = dict.fromkeys(("encoder.weight", "decoder.weight"), torch.zeros(2))
    w_t |= {"bn.running_mean": torch.zeros(2), "bn.num_batches_tracked": torch.tensor(0)}
    moved = {name: t + torch.tensor([3, 4]) if t.ndim else t + 1 for name, t in w_t.items()}
    for module, names in (("encoder", None), ("bn", ["bn.running_mean"])):
        [line] = record(1, names, global_state=w_t, clients=[moved], served_state=moved)
        assert line["mean_update_norm"] == line["server_update_norm"] == 5.0
        assert line["layers"].keys() == {module}


def test_recorder_counts_clients_not_finite(record: Any) -> None:
    stays = {"served_state": state(0.0, 0.0), "weights": [1, 1]}
    record(1, clients=[state(math.nan, 0.0), state(3.0, 4.0)], **stays)
    first, second = record(2, clients=[state(1.0, 0.0), state(-1.0, 0.0)], **stays)
    assert (first["clients"], first["rejected"], first["mean_client_norm"]) == (1, 1, 5.0)
    assert (first["degenerate"], second["degenerate"]) == (False, True)


def test_recorder_continues_its_file(tmp_path: Path, record: Any) -> None:
    for number in (1, 2, 3, 2):
        lines = record(number, served_state=state(0.0, float(number)))
    assert [(line["round"], line["integrated_norm"]) for line in lines] == [(1, 1.0), (2, 3.0)]
    path = tmp_path / "metrics.jsonl"
    whole = path.read_text()
    path.write_text(whole + whole[:30])  # a process that died while writing
    assert [line["round"] for line in record(5)] == [1, 2, 5]
    assert path.read_text().startswith(whole)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"round": 0}, "round: 0: "),
        ({"weights": [1.0, 1.0]}, "round 1: "),
        ({"served_state": None}, "served_state: "),
        ({"global_state": {"layer.weight": [0.0, 0.0]}}, "global_state: "),
        ({"global_state": state(-math.inf, 0.0)}, "global_state: layer.weight: not finite: "),
        ({"clients": [{}]}, "round 1: client model: missing entries"),
        ({"clients": [(5, state(1.0, 0.0))]}, "round 1: client: tuple: "),
        ({"clients": [state(math.inf, 0.0)]}, "no client update to average"),
        ({"served_state": state(math.nan, 1.0)}, "served_state: not finite"),
        ({"names": iter(["bias"])}, r"trainable: \['bias'\]: not in the global state"),
        ({"test_acc": 1.5}, "test_acc: 1.5"),
        ({"test_loss": 10**400}, "test_loss: .*: must be a number"),
    ],
)
def test_recorder_refuses_what_does_not_fit(
    tmp_path: Path, record: Any, values: dict[str, Any], words: str
) -> None:
    with pytest.raises(fp.UserError, match=words):
        record(1, **values)
    assert not any(tmp_path.iterdir())


def test_recorder_refuses_another_file(tmp_path: Path, record: Any) -> None:
    for text in ("by hand\n", '{"precious": 1}'):
        (tmp_path / "metrics.jsonl").write_text(text)
        with pytest.raises(fp.UserError, match=r"not a metrics\.jsonl file"):
            record(1)
        assert (tmp_path / "metrics.jsonl").read_text() == text
