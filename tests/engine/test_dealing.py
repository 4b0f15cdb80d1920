"""Dealing clients to ranks, heaviest first."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fednnnn_plugin.data.client_sizes import client_sizes
from fednnnn_plugin.engine.cohort import draw_cohort
from fednnnn_plugin.engine.ranks import Solo, deal
from fednnnn_plugin.recipe import list_recipes, load_recipe


def test_dealing_worked_by_hand() -> None:
    """8 → 0, 7 → 1, 5 → 1, 4 → 0, 3 → 0 or 1 (12 each): the first."""
    groups = [(10,), (11,), (12,), (13,), (14,)]
    assert deal(groups, [3, 8, 5, 7, 4], 2) == [[(11,), (14,), (10,)], [(13,), (12,)]]


@settings(deadline=None)
@given(work=st.lists(st.integers(1, 10_000), min_size=1, max_size=60), ranks=st.integers(1, 9))
def test_every_client_is_dealt_once_and_loads_are_near_the_best(
    work: list[int], ranks: int
) -> None:
    groups = [(client,) for client in range(len(work))]
    hands = deal(groups, work, ranks)
    assert len(hands) == ranks
    assert sorted(group for hand in hands for group in hand) == groups
    loads = [sum(work[client] for (client,) in hand) for hand in hands]
    assert max(loads) <= 4 / 3 * max(*work, -(-sum(work) // ranks), _pairs(work, ranks))
    shuffled = np.random.default_rng(0).permutation(len(work)).tolist()
    assert deal([groups[i] for i in shuffled], [work[i] for i in shuffled], ranks) == hands


def _pairs(work: list[int], ranks: int) -> int:
    """With more clients than ranks two of the heaviest must share one."""
    heaviest = sorted(work, reverse=True)
    return heaviest[ranks - 1] + heaviest[ranks] if len(work) > ranks else 0


@pytest.mark.parametrize(
    "path", [p for p in list_recipes() if p.stem.startswith("mnist_noniid_ub")]
)
def test_the_busiest_of_four_ranks_has_little_more_than_the_mean(path: Path) -> None:
    recipe = load_recipe(path)
    train, data = recipe.train_args, recipe.data_args
    sizes = client_sizes(
        60_000, train.client_num_in_total, data.power_law_exponent, data.min_samples
    ).tolist()
    for number in range(1, 11):
        cohort = draw_cohort(0, number, len(sizes), train.client_num_per_round)
        work = [sizes[client] * train.epochs for client in cohort]
        hands = deal([(client,) for client in cohort], work, 4)
        loads = [sum(sizes[client] * train.epochs for (client,) in hand) for hand in hands]
        assert max(loads) <= max(1.15 * sum(loads) / 4, *work)


def test_one_process_trains_all_clients_the_heaviest_first() -> None:
    assert Solo().deal([(0,), (1,), (2,)], [5, 9, 5]) == [(1,), (0,), (2,)]
