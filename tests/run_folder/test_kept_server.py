"""A platform's server that goes on with the state and the records of its folder."""

from pathlib import Path
from unittest.mock import Mock

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
    """Its record is there; several of them are of another federation."""

    def made() -> KeptServer:
        model, state = {"w": torch.zeros(3)}, tmp_path / "state"
        given = (RULES["FedNNNN"], {"beta": 0.7, "gamma": 0.6}, model, None, "uniform", None)
        return KeptServer(*given, state, tmp_path)

    monkeypatch.setattr(kept_server, "write_state", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        advance(made())
    monkeypatch.undo()
    assert len(read_records(tmp_path)) == 1
    server = made()
    for _ in range(2):
        advance(server)
    assert [record["round"] for record in read_records(tmp_path)] == [1, 2]
    (tmp_path / "state").unlink()
    with pytest.raises(UserError, match=r"^metrics_path: .*has records of 2 rounds, state_path"):
        made()
