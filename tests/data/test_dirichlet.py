"""Dirichlet label skew: the draw, its fit to the clients' sizes and its rounding; or free sizes."""

from unittest.mock import Mock

import numpy as np
import pytest
from scipy.special import polygamma

from fednnnn_plugin.data.dirichlet import class_by_class_shares, dirichlet_shares
from fednnnn_plugin.data.partition import partition
from fednnnn_plugin.seeds import derive_seed


def test_dirichlet_worked_by_hand() -> None:
    rng = np.random.default_rng(0)
    assert dirichlet_shares(np.array([3, 4]), np.array([7]), 0.5, rng).tolist() == [[3, 4]]
    halves = np.array([50, 50])  # where alpha is small each client has one of two classes
    tables = {str(dirichlet_shares(halves, halves, 1e-5, rng).tolist()) for _ in range(8)}
    assert tables == {"[[50, 0], [0, 50]]", "[[0, 50], [50, 0]]"}


def test_dirichlet_sums_are_exact_without_a_fit() -> None:
    """Of such draws no ratios give these sizes: the last clients get what is left."""
    classes, clients = np.array([19, 23]), np.array([16, 2, 2, 16, 6])
    table = dirichlet_shares(classes, clients, 0.001, np.random.default_rng(1))
    assert table.sum(axis=0).tolist() == classes.tolist()
    assert table.sum(axis=1).tolist() == clients.tolist()


@pytest.mark.parametrize("alpha", [2.0, 5.0])
def test_dirichlet_odds_ratios_are_those_of_gammas(alpha: float) -> None:
    """The fit keeps them; the logarithm of a Gamma(α) draw has the variance ψ'(α)."""
    classes, clients = 10**5 * np.repeat([1, 3], 150), np.full(300, 2 * 10**5)
    table = dirichlet_shares(classes, clients, alpha, np.random.default_rng(0))
    assert (table.sum(axis=0) == classes).all()
    assert (table.sum(axis=1) == clients).all()
    logs = np.log(table.reshape(150, 2, 150, 2))  # 22,500 tables of two by two, no cell in common
    odds = logs[:, 0, :, 0] - logs[:, 0, :, 1] - logs[:, 1, :, 0] + logs[:, 1, :, 1]
    assert odds.var() == pytest.approx(4 * polygamma(1, alpha), rel=0.03)


def told(*splits: list[list[float]]) -> Mock:
    """Stand for a generator that draws these splits."""
    return Mock(dirichlet=Mock(side_effect=map(np.array, splits)))


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_by_class_worked_by_hand() -> None:
    """7.5 is cut to 7; a client with its even part, 7 of 14, gets none of the next class."""
    two = np.array([10, 10])
    rng = told([[0.75, 0.25], [0.5, 0.5]])
    assert class_by_class_shares(two, 2, 1.0, 1, rng).tolist() == [[7, 5], [3, 5]]
    rng = told([[0.9, 0.1], [0.9, 0.1]])
    assert class_by_class_shares(np.array([10, 4]), 2, 1.0, 1, rng).tolist() == [[9, 0], [1, 4]]
    rng = told([[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [1.0, 0.0]], [[0.2, 0.8], [0.5, 0.5]])
    assert class_by_class_shares(two, 2, 1.0, 8, rng).tolist() == [[0, 10], [10, 0]]
    assert class_by_class_shares(two, 2, 1.0, 7, rng).tolist() == [[2, 5], [8, 5]]


@pytest.mark.parametrize("alpha", [0.1, 0.5, 100.0])
def test_by_class_has_the_counts_of_numpys_draws(alpha: float) -> None:
    """Those of ``np.random.default_rng(seed).dirichlet``, as NIID-Bench cuts a class by them.

    But for the last bits of the cuts, by which it gives clients that have enough a last one.
    """
    labels = np.random.default_rng(9).integers(0, 7, 3000)
    for seed in range(5):
        rng = np.random.default_rng(derive_seed(seed, "partition"))
        held: list[list[int]] = [[]]
        while min(map(len, held)) < 10:
            held = [[] for _ in range(12)]
            for label in range(7):
                shares = rng.dirichlet(np.repeat(alpha, 12))
                shares *= [len(of) < 3000 / 12 for of in held]
                positions = np.flatnonzero(labels == label)
                ends = np.cumsum(shares / shares.sum()) * len(positions)
                parts = np.split(positions, ends.round(6).astype(int)[:-1])
                held = [of + part.tolist() for of, part in zip(held, parts, strict=True)]
        found = partition(labels, 12, "dirichlet_by_class", alpha=alpha, seed=seed)
        for client, of in zip(found, held, strict=True):
            assert np.bincount(labels[client]).tolist() == np.bincount(labels[of]).tolist()
