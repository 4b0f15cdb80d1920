"""Dirichlet label skew: the draw, its fit to the clients' sizes, and its rounding."""

import numpy as np
import pytest

from fednnnn_plugin.data.dirichlet import LEAST_ALPHA, dirichlet_shares


def test_by_hand() -> None:
    rng = np.random.default_rng(0)
    assert dirichlet_shares(np.array([3, 4]), np.array([7]), 0.5, rng).tolist() == [[3, 4]]
    sizes = np.array([4, 2, 1])
    assert dirichlet_shares(np.array([7]), sizes, 0.5, rng).tolist() == [[4], [2], [1]]
    halves = np.array([50, 50])  # where alpha is small each client has one of two classes
    tables = {str(dirichlet_shares(halves, halves, 1e-5, rng).tolist()) for _ in range(8)}
    assert tables == {"[[50, 0], [0, 50]]", "[[0, 50], [50, 0]]"}


def test_the_smaller_alpha_the_larger_a_clients_largest_class() -> None:
    classes, clients = np.full(10, 600), np.full(100, 60)

    def largest(alpha: float) -> float:
        shares = dirichlet_shares(classes, clients, alpha, np.random.default_rng(0))
        return float(shares.max(axis=1).mean() / 60)

    assert 0.8 < largest(0.02) < largest(0.005) < largest(LEAST_ALPHA)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0, 10.0, 1e6])
def test_each_client_s_mixture_is_spread_as_a_dirichlet_s(alpha: float) -> None:
    # With balanced classes and clients a client's row is a Dir(α) mixture of C classes too, but
    # for the fit: Var = (1/C)(1 - 1/C) / (C α + 1).
    classes, clients = np.full(10, 600), np.full(30, 200)
    rng = np.random.default_rng(0)
    drawn = np.stack([dirichlet_shares(classes, clients, alpha, rng) / 200 for _ in range(10)])
    assert drawn.var() == pytest.approx(0.09 / (10 * alpha + 1), rel=0.15, abs=1e-5)
