"""The mean square of the clients' norms: by hand, in any order, on any number of processes."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fednnnn_plugin.server.average import UpdateAccumulator

GLOBAL = {"w": torch.tensor([1.0, 2.0])}


def part_of(clients, max_client_norm: float | None = None) -> UpdateAccumulator:
    part = UpdateAccumulator(GLOBAL, ["w"], max_client_norm)
    for update, weight in clients:
        assert part.add({"w": GLOBAL["w"] + torch.tensor(update)}, weight)
    return part


def test_by_hand() -> None:
    """Norms 5 and 13, weights 1 and 3: (25 + 3 · 169) / 4 = 133."""
    clients = [((3.0, 4.0), 1.0), ((5.0, 12.0), 3.0)]
    assert part_of(clients).finish().mean_client_square == 133.0


def test_a_clipped_client_counts_with_its_clipped_norm() -> None:
    """13 is clipped to 6.5 = 13 / 2: (25 + 42.25) / 2."""
    clients = [((3.0, 4.0), 1.0), ((5.0, 12.0), 1.0)]
    assert part_of(clients, 6.5).finish().mean_client_square == 33.625


def test_the_largest_norm_stays_finite() -> None:
    part = UpdateAccumulator({"w": torch.zeros(1, dtype=torch.float64)}, ["w"])
    assert part.add({"w": torch.tensor([1.3407807929942596e154], dtype=torch.float64)}, 1.0)
    assert part.finish().mean_client_square == pytest.approx(1.797e308, rel=1e-3)


@given(
    clients=st.lists(
        st.tuples(
            st.tuples(*[st.floats(-(2.0**60), 2.0**60, width=32)] * 2),
            st.sampled_from([1.0, 0.3, 1e6]),
        ),
        min_size=1,
        max_size=5,
    ),
    cut=st.integers(0, 5),
)
def test_any_order_and_any_deal_give_the_same_bits(clients, cut: int) -> None:
    results = {
        part_of(order).finish().mean_client_square
        for order in itertools.islice(itertools.permutations(clients), 24)
    }
    whole, rest = part_of(clients[:cut]), part_of(clients[cut:])
    whole.merge(rest)
    results.add(whole.finish().mean_client_square)
    assert len(results) == 1
