"""Which clients train together: as many as fit, and a group for every rank."""

from functools import partial
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.client.method import ClientMethod
from fednnnn_plugin.client.methods.fednova import FedNova
from fednnnn_plugin.client.methods.fedsam import FedSAM
from fednnnn_plugin.client.methods.scaffold import Scaffold
from fednnnn_plugin.rounds.groups import client_needs, plan_groups


def test_groups_worked_by_hand() -> None:
    """40 samples, the largest client first."""
    sizes = [6, 5, 12, 10, 1, 6]
    everyone = range(6)
    assert plan_groups(everyone, sizes, 9) == [(2, 3, 0, 5, 1, 4)]
    assert plan_groups(everyone, sizes, 4) == [(2, 3, 0, 5), (1, 4)]
    assert plan_groups([4, 0, 2], sizes, 1, least=3) == [(4,), (0,), (2,)]
    assert plan_groups(everyone, sizes, 9, least=2) == [(2, 3), (0, 5, 1, 4)]
    assert {len(group) for group in plan_groups(range(100), [600] * 100, 100, 8)} == {12, 13}


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=40),
    most=st.integers(2, 12),
    ranks=st.integers(1, 8),
    random=st.randoms(),
)
def test_groups_hold_every_client_once(
    sizes: list[int], most: int, ranks: int, random: Random
) -> None:
    clients = list(range(len(sizes)))
    groups = plan_groups(clients, sizes, most, ranks)
    flat = [client for group in groups for client in group]
    assert sorted(flat) == clients
    assert [sizes[client] for client in flat] == sorted(sizes, reverse=True)
    assert max(map(len, groups)) <= most
    assert len(groups) >= min(ranks, len(clients))
    if ranks == 1:
        assert len(groups) == -(-len(clients) // most)
    random.shuffle(clients)
    assert plan_groups(clients, sizes, most, ranks) == groups


@pytest.mark.parametrize(("precision", "each"), [("fp32", 32), ("bf16", 32), ("fp64", 48)])
def test_client_needs_worked_by_hand(precision: Any, each: int) -> None:
    """A linear layer of 3 · 2 + 2 weights: 4 of each and 2 in float64; autograd keeps its input."""
    sgd = LocalSGD(epochs=2, batch_size=5, learning_rate=0.1, precision=precision)
    kept = 5 * 3 * (each - 16) // 4
    needs = partial(client_needs, nn.Linear(3, 2), sgd, torch.empty(5, 3, device="meta"))
    assert needs(ClientMethod()) == (8 * each + 4 * kept, 5 * 3)
    # A correction, the update; kept before, after, and as it counts; returned, and as it counts.
    assert needs(Scaffold())[0] == 8 * (each + (2 + 3 + 2) * (each - 16) // 4) + 4 * kept
    # The update and a correction, as of all; two gradients, a point and a result; what is uploaded.
    for method, more in ((FedSAM(0.1), 2 + 4), (FedNova(), 2 + 1)):
        assert needs(method)[0] == 8 * (each + more * (each - 16) // 4) + 4 * kept
