"""Dirichlet label skew: the draw, its fit to the clients' sizes, and its rounding."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednnnn_plugin.data.client_sizes import client_sizes
from fednnnn_plugin.data.dirichlet import dirichlet_shares
from fednnnn_plugin.data.partition import partition

LABELS = np.repeat(np.arange(10), 600)


def shares(alpha: float, num_clients: int = 30, seed: int = 0) -> np.ndarray:
    """Each client's share of each class."""
    clients = partition(LABELS, num_clients, "dirichlet", alpha=alpha, seed=seed)
    counts = np.stack([np.bincount(LABELS[c], minlength=10) for c in clients])
    return counts / counts.sum(axis=1, keepdims=True)


def test_one_client_and_one_class_by_hand() -> None:
    rng = np.random.default_rng(0)
    assert dirichlet_shares(np.array([3, 4]), np.array([7]), 0.5, rng).tolist() == [[3, 4]]
    sizes = np.array([4, 2, 1])
    assert dirichlet_shares(np.array([7]), sizes, 0.5, rng).tolist() == [[4], [2], [1]]


def test_two_clients_of_one_class_each_where_alpha_is_small() -> None:
    halves = np.array([50, 50])
    tables = {
        tuple(map(tuple, dirichlet_shares(halves, halves, 1e-5, np.random.default_rng(s)).tolist()))
        for s in range(8)
    }
    assert tables == {((50, 0), (0, 50)), ((0, 50), (50, 0))}


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0, 10.0])
def test_each_client_s_mixture_is_spread_as_a_dirichlet_s(alpha: float) -> None:
    # With balanced classes and clients a client's row is a Dir(α) mixture of C classes too, but
    # for the fit: Var = (1/C)(1 - 1/C) / (C α + 1).
    drawn = np.concatenate([shares(alpha, seed=seed) for seed in range(10)])
    assert drawn.mean(axis=0) == pytest.approx(np.full(10, 0.1), abs=1e-9)
    assert drawn.var() == pytest.approx(0.09 / (10 * alpha + 1), rel=0.15)


def test_the_smaller_alpha_the_fewer_classes() -> None:
    largest = [shares(alpha).max(axis=1).mean() for alpha in (0.01, 0.1, 1.0, 10.0, 1e6)]
    assert largest == sorted(largest, reverse=True)
    assert largest[0] > 0.8
    assert largest[-1] == pytest.approx(0.1, abs=0.01)


@given(
    class_sizes=st.lists(st.integers(1, 300), min_size=1, max_size=8),
    num_clients=st.integers(1, 40),
    exponent=st.none() | st.floats(0, 3),
    alpha=st.floats(1e-310, 1e308),
    seed=st.integers(0, 99),
)
def test_every_sum_is_exact(
    class_sizes: list[int], num_clients: int, exponent: float | None, alpha: float, seed: int
) -> None:
    num_clients = min(num_clients, sum(class_sizes))
    sizes = client_sizes(sum(class_sizes), num_clients, exponent, min_samples=1)
    table = dirichlet_shares(np.array(class_sizes), sizes, alpha, np.random.default_rng(seed))
    assert (table >= 0).all()
    assert table.sum(axis=0).tolist() == class_sizes
    assert table.sum(axis=1).tolist() == sizes.tolist()
