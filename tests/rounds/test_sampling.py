"""Which clients train in a round: uniform draws, a user's sampler; in which order, and where."""

import random
from collections import Counter
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

import fednnnn_plugin as fp
from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.rounds.assignment import assign
from fednnnn_plugin.rounds.batches import TensorBatches
from fednnnn_plugin.rounds.sampling import draw_cohort
from fednnnn_plugin.seeds import generators_state, torch_generator

from ..tiny import Start, draw

KEY = "train_args.client_sampling"


def test_cohorts_are_the_same_on_every_platform() -> None:
    assert draw_cohort(0, 1, 10, 4) == [1, 5, 6, 8]
    assert draw_cohort(0, 1, 100, 7) == [6, 8, 25, 48, 51, 69, 88]


def test_cohorts_are_drawn_as_often() -> None:
    """Over the rounds of one seed, and over the seeds of one round: all 20 threes of 6 clients."""
    for drawn in (lambda n: draw_cohort(0, n, 6, 3), lambda n: draw_cohort(n, 1, 6, 3)):
        seen = Counter(tuple(drawn(n)) for n in range(1, 2001))
        assert len(seen) == 20
        assert chisquare([*seen.values()]).pvalue > 0.001


def test_sampler_draws_follow_from_seed_and_round() -> None:
    """Its draws from its generator and from the global ones, which are restored."""

    def drawn(number: int, clients: int, size: int, generator: torch.Generator) -> Any:
        assert torch.equal(generator.get_state(), torch_generator(2, "cohort", number).get_state())
        return (int(1e6 * draw()) - torch.arange(size)) % clients

    before = generators_state()
    cohorts = [draw_cohort(2, number, 50, 5, drawn) for number in (1, 2, 3, 1)]
    assert generators_state() == before
    assert len({str(cohort) for cohort in cohorts}) == 3
    assert cohorts[0] == cohorts[3] == sorted(cohorts[0])


def test_sampler_may_return_any_form() -> None:
    array, tensor = np.array([4, 2, 0], np.uint8), torch.tensor([2, 4, 0], dtype=torch.int32)
    mixed = [np.int64(0), torch.tensor(2), 4]
    for drawn in ({4, 0, 2}, range(0, 6, 2), array, tensor, mixed, (k for k in (0, 4, 2))):
        assert draw_cohort(0, 1, 6, 3, lambda *_, drawn=drawn: drawn) == [0, 2, 4]


@pytest.mark.parametrize(
    ("drawn", "told"),
    [
        ([0, 1], "2 clients"),
        (count(), "more than 3 clients"),
        ([0, 1, 1], "client 1 twice"),
        ([0, 1, 6], "client 6"),
        ([0, -1, 2], "client -1"),
        ([0, 1.0, 2], "client 1.0"),
        ([0, True, 2], "client true"),
        (np.eye(3), "client a list"),
        (None, "null"),
    ],
)
def test_sampler_must_return_different_clients(drawn: Any, told: str) -> None:
    with pytest.raises(UserError, match=f"^{KEY}: round 4: {told}: must be 3 different"):
        draw_cohort(0, 4, 6, 3, lambda *_: drawn)


def test_sampler_that_fails_ends_the_run(start: Start) -> None:
    with pytest.raises(fp.RunError, match=rf"^{KEY}: round 3: raised ZeroDiv") as ended:
        start("run", client_sampling=lambda n, *_: [0, 1, 6 // (3 - n)], comm_round=3)
    assert isinstance(ended.value.__cause__, ZeroDivisionError)
    assert fp.read_runs("run")["round"].tolist() == [1, 2]


def test_shuffles_differ_by_seed_round_client_and_epoch(data: FederatedData) -> None:
    """Each is a permutation of the client's 30 images."""
    held = data.client_indices[3]
    twins = replace(data, client_indices=(held, held))
    drawn: list[list[int]] = []
    for seed, client, number in ((0, 0, 1), (0, 1, 1), (0, 0, 2), (1, 0, 1)):
        batches = TensorBatches(twins, LocalSGD(2, 8, 0.1), seed, torch.device("cpu"))
        drawn += [order.tolist() for order in batches.orders(client, number)]
    assert len({str(order) for order in drawn}) == 8
    assert all(sorted(order) == sorted(held.tolist()) for order in drawn)


def test_dealing_worked_by_hand() -> None:
    """8 → 0, 7 → 1, 5 → 1, 4 → 0, 3 → 0 or 1 (12 each): the first."""
    groups = [(10,), (11,), (12,), (13,), (14,)]
    assert assign(groups, [3, 8, 5, 7, 4], 2) == [[(11,), (14,), (10,)], [(13,), (12,)]]
    assert assign(groups, [3, 8, 5, 7, 8], 1) == [[(11,), (14,), (13,), (12,), (10,)]]


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=60), st.integers(1, 9), st.randoms())
def test_dealing_is_complete_and_near_the_best(
    work: list[int], ranks: int, shuffle: random.Random
) -> None:
    groups = [(client,) for client in range(len(work))]
    hands = assign(groups, work, ranks)
    assert len(hands) == ranks
    assert sorted(group for hand in hands for group in hand) == groups
    loads = [sum(work[client] for (client,) in hand) for hand in hands]
    heaviest = sorted(work, reverse=True)
    # With more clients than ranks two of the heaviest must share one.
    pair = heaviest[ranks - 1] + heaviest[ranks] if len(work) > ranks else 0
    assert max(loads) <= 4 / 3 * max(*work, -(-sum(work) // ranks), pair)
    shuffle.shuffle(groups)
    assert assign(groups, [work[client] for (client,) in groups], ranks) == hands
