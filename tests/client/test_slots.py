"""Clients on models of their own, on a stand-in's streams and graphs: the bits of each alone."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from fednnnn_plugin.client.correction import Correction
from fednnnn_plugin.client.replica import Replica
from fednnnn_plugin.client.slots import Slots, Stage
from fednnnn_plugin.client.step_graphs import StepGraphs
from fednnnn_plugin.seeds import isolated_generators

from .test_group_sgd import SGD, Clients, Small
from .test_step_graphs import Captured


class Streams:
    """Three, which compute at once; notes what each of them did, and in which order."""

    count = 3

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.captured: list[Captured] = []

    def begin(self) -> None:
        self.said.append("begin")

    def end(self) -> None:
        self.said.append("end")

    @contextmanager
    def on(self, slot: int) -> Any:
        self.said.append(slot)
        yield

    def graphs(self, slot: int) -> StepGraphs:
        self.captured.append(captured := Captured())
        return StepGraphs(lambda: captured)


def staging(clients: Clients) -> Stage:
    return lambda positions: (clients.images[positions], clients.labels[positions])


DROPPING = nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(64, 10))


@pytest.mark.parametrize(
    ("model", "settings", "corrected", "captures"),
    [
        (Small(), {"prox_mu": 0.3, "weight_decay": 5e-3}, False, 7),
        (Small(), {"schedule": lambda number: 0.05 / 2 ** (number - 1)}, False, 0),
        (Small(), {"optimizer": partial(torch.optim.Adam, weight_decay=0.1)}, False, 0),
        (Small(), {}, True, 0),
        (DROPPING, {}, False, 0),
    ],
)
def test_slots_have_the_bits_of_clients_alone(
    model: nn.Module, settings: dict[str, Any], corrected: bool, captures: int
) -> None:
    """Two rounds; the slot with the fewest samples gets the next client, the first one in a tie.

    What may draw has no graphs, and one of ours that does not: slots then have batches of 4, 3 and
    1 samples, of 4 and 1, and of 4 and 1, each more than once.
    """
    clients = Clients(model, (9, 9, 9, 7, 5), replace(SGD, **settings))
    streams, stage = Streams(), staging(clients)
    slots = Slots(clients.sgd, model, stage, streams)
    added = torch.randn(5, clients.layout.size, dtype=torch.float64)
    correction = Correction(added) if corrected else None
    for number in (2, 3):
        drawing = [isolated_generators(number, "client", client) for client in range(5)]
        drawing = [] if captures else drawing
        found = slots.train(
            clients.served,
            clients.orders,
            round_number=number,
            correction=correction,
            generators=drawing,
        )
        for client, orders in enumerate(clients.orders):
            replica = Replica(clients.model)
            replica.load(clients.served)
            epochs = [map(stage, order.split(4)) for order in orders]
            with isolated_generators(number, "client", client):
                own = None if correction is None else correction.row(client)
                clients.sgd.in_round(number).train(replica, epochs, correction=own)
            for rows, tensor in zip(found.tensors, replica.state.tensors, strict=True):
                torch.testing.assert_close(rows[client], tensor, rtol=0, atol=0)
    assert streams.said == ["begin", 0, 1, 2, 0, 1, "end"] * 2
    assert sum(each.captures for each in streams.captured) == captures


def test_failed_training_leaves_nothing_behind() -> None:
    clients, streams, left = Clients(Small(), (5, 5), SGD), Streams(), iter([1, 2, 3])
    slots = Slots(SGD, clients.model, staging(clients), streams)
    with pytest.raises(StopIteration):
        slots.train(clients.served, clients.orders, lambda: next(left))
    assert streams.said == ["begin", 0, "end"]
    assert len(slots.train(clients.served, clients.orders).vector) == 2
    assert len(streams.captured) == 6
