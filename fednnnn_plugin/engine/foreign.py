"""Local training that is the user's own."""

from __future__ import annotations

import threading
from typing import Protocol

from fednnnn_plugin.client.replica import Replica
from fednnnn_plugin.engine.evaluation import Evaluation
from fednnnn_plugin.server.layout import State


class ForeignTrainer(Protocol):
    """A user's own local training, such as a FedML ``ClientTrainer``."""

    def train(self, client: int, state: State, round_number: int) -> State:
        """Return the client's model, trained from ``state``, which may not be kept."""

    def test(self, state: State) -> Evaluation | None:
        """Test a model; None leaves that to the engine."""


class ForeignTraining:
    """Trains clients with a user's trainer, one at a time."""

    def __init__(self, trainer: ForeignTrainer) -> None:
        self._trainer = trainer

    def __call__(
        self, replica: Replica, round_number: int, client: int, stopping: threading.Event
    ) -> State:
        """Return the client's model."""
        served = replica.layout.state_dict(replica.state)
        return self._trainer.train(client, served, round_number)
