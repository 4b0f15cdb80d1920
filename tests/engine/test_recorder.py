"""Norm records of an aggregation that is not ours."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fednnnn_plugin as fp
from fednnnn_plugin.server.layout import State

Lines = Callable[[Path], list[dict[str, Any]]]


def state(*values: float) -> State:
    return {"layer.weight": torch.tensor(values)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def record(path: Path, number: int, **given: Any) -> None:
    """Record a round of one client that moved by (1, 0), as the server did."""
    usual = {"global_state": state(0.0, 0.0), "clients": [state(1.0, 0.0)], "round": number}
    usual |= {"served_state": state(1.0, 0.0), "weights": [1.0]}
    fp.NWDARecorder(path).record(**usual | given)


def test_recorder_round_by_hand(path: Path, records: Lines) -> None:
    """S = (1.5, 2): N = 2.5, E = 3.5; the server moved by (0.3, 0.4)."""
    clients = [state(3.0, 0.0), state(0.0, 4.0)]
    record(path, 1, clients=iter(clients), weights=[2.0, 2.0], served_state=state(0.3, 0.4))
    record(path, 2)
    first, second = records(path.parent)
    norms = {"mean_update_norm": 2.5, "mean_client_norm": 3.5}
    norms["server_update_norm"] = pytest.approx(0.5)
    assert {key: first[key] for key in norms} == norms
    assert first["layers"] == {"layer": norms}
    assert first["client_norms"] == [3.0, 3.5, 4.0]
    assert (first["round"], first["clients"], first["rejected"]) == (1, 2, 0)
    assert (first["test_acc"], first["test_loss"], first["degenerate"]) == (None, None, False)
    assert second["integrated_norm"] == pytest.approx(1.5)


def test_recorder_counts_parameters_once(tmp_path: Path, records: Lines) -> None:
    w_t = dict.fromkeys(("encoder.weight", "decoder.weight"), torch.zeros(2))
    w_t |= {"bn.running_mean": torch.zeros(2), "bn.num_batches_tracked": torch.tensor(0)}
    moved = {name: t + torch.tensor([3, 4]) if t.ndim else t + 1 for name, t in w_t.items()}
    for module, names in (("encoder", None), ("bn", ["bn.running_mean"])):
        folder = tmp_path / module
        fp.NWDARecorder(folder / "metrics.jsonl", names).record(w_t, [moved], [1.0], moved, 1)
        [line] = records(folder)
        assert line["mean_update_norm"] == line["server_update_norm"] == 5.0
        assert line["layers"].keys() == {module}


def test_recorder_counts_clients_not_finite(path: Path, records: Lines) -> None:
    stays = {"served_state": state(0.0, 0.0), "weights": [1, 1]}
    record(path, 1, clients=[state(math.nan, 0.0), state(3.0, 4.0)], **stays)
    record(path, 2, clients=[state(1.0, 0.0), state(-1.0, 0.0)], **stays)
    first, second = records(path.parent)
    assert (first["clients"], first["rejected"], first["mean_client_norm"]) == (1, 1, 5.0)
    assert (first["degenerate"], second["degenerate"]) == (False, True)


def test_recorder_continues_its_file(path: Path, records: Lines) -> None:
    for number in (1, 2, 3, 2):
        record(path, number, served_state=state(0.0, float(number)))
    assert [line["round"] for line in records(path.parent)] == [1, 2]
    assert [line["integrated_norm"] for line in records(path.parent)] == [1.0, 3.0]
    whole = path.read_text()
    path.write_text(whole + whole[:30])  # a process that died while writing
    record(path, 5)
    assert path.read_text().startswith(whole)
    assert [line["round"] for line in records(path.parent)] == [1, 2, 5]


def test_numbers_may_be_numpys_and_torchs(path: Path, records: Lines) -> None:
    numbers = {"test_acc": np.float32(0.5), "test_loss": torch.tensor(2.0)}
    record(path, np.int64(1), **numbers)  # type: ignore[arg-type]
    (line,) = records(path.parent)
    assert (line["round"], line["test_acc"], line["test_loss"]) == (1, 0.5, 2.0)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"round": 0}, "round: 0: "),
        ({"weights": [1.0, 1.0]}, "round 1: "),
        ({"weights": None}, "round 1: "),
        ({"served_state": None}, "served_state: must map names to tensors"),
        ({"global_state": {"layer.weight": [0.0, 0.0]}}, "global_state: must map names to tensors"),
        ({"clients": [{}]}, "round 1: client model: missing entries"),
        ({"clients": [(5, state(1.0, 0.0))]}, "round 1: client: tuple: must map names"),
        ({"clients": [state(math.inf, 0.0)]}, "no client update to average"),
        ({"served_state": state(1.0)}, "served_state: layer.weight: missing, or of another shape"),
        ({"test_acc": 1.5}, "test_acc: 1.5"),
        ({"test_acc": "0.5"}, "test_acc: '0.5': must be a number"),
        ({"test_loss": torch.zeros(2)}, "test_loss: .*: must be a number"),
        ({"test_loss": 10**400}, "test_loss: .*: must be a number"),
        ({"served_state": state(math.nan, 1.0)}, "served_state: not finite"),
    ],
)
def test_recorder_refuses_what_does_not_fit(values: dict[str, Any], words: str, path: Path) -> None:
    with pytest.raises(fp.UserError, match=words):
        record(path, 1, **values)
    assert not path.exists()


def test_recorder_refuses_another_file_or_name(path: Path) -> None:
    for text in ("by hand\n", '{"precious": 1}'):
        path.write_text(text)
        with pytest.raises(fp.UserError, match=r"not a metrics\.jsonl file"):
            record(path, 1)
        assert path.read_text() == text
    once = (name for name in ["bias"])
    with pytest.raises(fp.UserError, match=r"trainable: \['bias'\]: not in the global state"):
        fp.NWDARecorder(path, once).record(state(0.0), [], [], state(1.0), 1)
