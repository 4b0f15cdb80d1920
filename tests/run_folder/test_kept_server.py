"""A platform's server that goes on with the state and the records of its folder."""

from pathlib import Path

import pytest
import torch

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.run_folder import kept_server
from fednnnn_plugin.run_folder.kept_server import KeptServer
from fednnnn_plugin.server.rules import RULES

from ..tiny import read_records


def advance(server: KeptServer) -> None:
    total = server.begin_sum()
    server.add(total, {"w": torch.ones(3)}, 1.0, "client 0")
    server.records.clients_came()
    server.close_round(total)


def test_first_round_that_was_killed_before_its_state_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the model of that start. Without any state the record is of another federation."""
    write, state = kept_server.write_state, tmp_path / "state"

    others = None, "uniform", None, state, tmp_path

    def made(value: float = 0.0) -> KeptServer:
        model = {"w": torch.full((3,), value)}
        return KeptServer(RULES["FedNNNN"], {"beta": 0.7, "gamma": 0.6}, model, *others)

    def killed(*given) -> None:
        if given[2]["round"]:
            raise KeyboardInterrupt
        write(*given)

    monkeypatch.setattr(kept_server, "write_state", killed)
    with pytest.raises(KeyboardInterrupt):
        advance(made())
    monkeypatch.undo()
    assert len(read_records(tmp_path)) == 1
    KeptServer(RULES["FedNNNN"], {"beta": 0.7, "gamma": 0.6}, {"v": torch.ones(2)}, *others)
    server = made(1.0)
    assert server.served["w"].tolist() == [1.0] * 3
    advance(server)
    advance(made())
    assert [record["round"] for record in read_records(tmp_path)] == [1, 2]
    state.unlink()
    with pytest.raises(UserError, match=r"^metrics_path: .*has records of 2 rounds, state_path"):
        made()
