"""Dealing clients to ranks, heaviest first."""

import random

from hypothesis import given
from hypothesis import strategies as st

from fednnnn_plugin.engine.ranks import deal


def test_dealing_worked_by_hand() -> None:
    """8 → 0, 7 → 1, 5 → 1, 4 → 0, 3 → 0 or 1 (12 each): the first."""
    groups = [(10,), (11,), (12,), (13,), (14,)]
    assert deal(groups, [3, 8, 5, 7, 4], 2) == [[(11,), (14,), (10,)], [(13,), (12,)]]
    assert deal(groups, [3, 8, 5, 7, 8], 1) == [[(11,), (14,), (13,), (12,), (10,)]]


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=60), st.integers(1, 9), st.randoms())
def test_dealing_is_complete_and_near_the_best(
    work: list[int], ranks: int, shuffle: random.Random
) -> None:
    groups = [(client,) for client in range(len(work))]
    hands = deal(groups, work, ranks)
    assert len(hands) == ranks
    assert sorted(group for hand in hands for group in hand) == groups
    loads = [sum(work[client] for (client,) in hand) for hand in hands]
    heaviest = sorted(work, reverse=True)
    # With more clients than ranks two of the heaviest must share one.
    pair = heaviest[ranks - 1] + heaviest[ranks] if len(work) > ranks else 0
    assert max(loads) <= 4 / 3 * max(*work, -(-sum(work) // ranks), pair)
    shuffle.shuffle(groups)
    assert deal(groups, [work[client] for (client,) in groups], ranks) == hands
