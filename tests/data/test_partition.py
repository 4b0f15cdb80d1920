"""Partitions of every kind: what each promises, whatever the labels."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.stats import chisquare
from sklearn.datasets import load_digits

from fednnnn_plugin.data.client_sizes import client_sizes
from fednnnn_plugin.data.dirichlet import LEAST_ALPHA
from fednnnn_plugin.data.federated import load_federated
from fednnnn_plugin.data.partition import METHODS, SIZES, partition
from fednnnn_plugin.errors import UserError

from .conftest import DIGITS as RECIPE
from .conftest import refusal

# Class sizes of MNIST's training images.
MNIST = np.repeat(np.arange(10), [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])
CIFAR10 = np.tile(np.arange(10), 5000)
DIGITS = load_digits().target[:1437]


def check_partition(clients: list[np.ndarray], labels: np.ndarray) -> np.ndarray:
    """Check that it is disjoint and covers every sample; return the counts of the classes."""
    assert (np.sort(np.concatenate(clients)) == np.arange(len(labels))).all()
    assert all(indices.dtype == np.int64 for indices in clients)
    assert all((np.diff(indices) > 0).all() for indices in clients)
    return np.stack([np.bincount(labels[c], minlength=labels.max() + 1) for c in clients])


def test_partition_worked_by_hand() -> None:
    # Three clients of 4 and four classes: only a chain of shared classes works.
    labels = np.repeat([0, 1, 2, 3], [3, 3, 3, 3])
    counts = check_partition(partition(labels, 3, "n_class"), labels)
    held = sorted(sorted(row[row > 0].tolist()) for row in counts)
    assert held == [[1, 3], [1, 3], [2, 2]]
    # As many clients of one class as there can be: of one sample each.
    alone = partition([0, 0, 1, 1, 1], 5, "n_class", classes_per_client=1)
    assert sorted(map(len, alone)) == [1] * 5
    # Clients of 3 and of 1: each has a class of its size.
    own = partition([0, 1, 1, 1], 2, "n_class", "power_law", classes_per_client=1, min_samples=1)
    assert [c.tolist() for c in own] == [[1, 2, 3], [0]]
    # Clients of 16 and of 17: 500 = 16 q + r of each class, which no few draws of clients sum to.
    labels = np.repeat(range(100), 500)
    counts = check_partition(partition(labels, 3_100, "n_class", classes_per_client=1), labels)
    assert ((counts > 0).sum(axis=1) == 1).all()


def test_iid_leaves_a_rare_class_to_chance() -> None:
    """Of 40 samples two are rare: of 8 clients with 5 each, all have the class that is not."""
    labels = np.repeat([0, 1], [38, 2])
    counts = check_partition(partition(labels, 8, "iid"), labels)
    assert counts.sum(axis=1).tolist() == [5] * 8
    assert (counts[:, 0] > 0).all()


def test_client_sizes_worked_by_hand() -> None:
    assert client_sizes(11, 4, None, min_samples=10).tolist() == [3, 3, 3, 2]
    # 1 + 1/2 + 1/3 = 11/6; 22 images: 12, 6, 4
    assert client_sizes(22, 3, 1.0, min_samples=1).tolist() == [12, 6, 4]
    # 23 images: 12.55, 6.27, 4.18: the image left over goes to the largest remainder
    assert client_sizes(23, 3, 1.0, min_samples=1).tolist() == [13, 6, 4]
    # the law would give the last 4: it gets 5, and the others divide 17 as 2 to 1
    assert client_sizes(22, 3, 1.0, min_samples=5).tolist() == [11, 6, 5]


@pytest.mark.parametrize(
    ("labels", "num_clients", "exponent"), [(MNIST, 100, 1.0), (DIGITS, 20, 0.7)]
)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("method", ["iid", "n_class", "dirichlet"])
def test_partition_is_as_the_papers(
    labels: np.ndarray, num_clients: int, exponent: float, sizes: str, method: str
) -> None:
    clients = partition(labels, num_clients, method, sizes, power_law_exponent=exponent, seed=3)
    counts = check_partition(clients, labels)
    held = counts.sum(axis=1)
    if sizes == "balanced":
        assert np.ptp(held) <= 1
    else:
        assert held.min() >= 10
        slope = np.polyfit(np.log(np.arange(1, num_clients + 1)), np.log(held), 1)[0]
        assert -slope == pytest.approx(exponent, rel=0.01)
    if method == "n_class":
        assert ((counts > 0).sum(axis=1) == 2).all()
        assert sizes == "power_law" or (counts / held[:, None])[counts > 0].min() >= 0.4
    if method == "iid":
        assert (counts > 0).all()
        # A random draw, not an equal one: the spread of one class is that of a hypergeometric.
        largest = counts[: num_clients // 2]
        expected = largest.sum(axis=1, keepdims=True) * np.bincount(labels) / len(labels)
        assert 0.5 < np.mean((largest - expected) ** 2 / expected) < 1.5


@pytest.mark.slow
def test_partition_draws_pairs_of_classes_alike() -> None:
    """To each client each of 6 pairs of classes comes as often, and of each class as much.

    The sizes are 80 k^(-1/2) / 2.784 = 28.7, 20.3, 16.6, 14.4 by largest remainder.
    """
    labels, seeds, sizes = np.tile(np.arange(4), 20), 120, np.array([29, 20, 17, 14])
    tables = []
    for seed in range(seeds):
        clients = partition(labels, 4, "n_class", "power_law", power_law_exponent=0.5, seed=seed)
        tables.append(check_partition(clients, labels))
        assert tables[-1].sum(axis=1).tolist() == sizes.tolist()
    for of_client in np.array(tables).transpose(1, 0, 2):
        pairs, seen = np.unique(of_client > 0, axis=0, return_counts=True)
        assert (pairs.sum(axis=1) == 2).all()
        assert len(seen) == 6
        assert chisquare(seen).pvalue > 0.001
    # A class is held or not, as by a coin: the mean's deviation is a quarter of the size / √120.
    assert np.abs(np.mean(tables, axis=0) / sizes[:, None] - 1 / 4).max() < 4 * 0.25 / seeds**0.5


def test_partition_deals_every_hand_as_often() -> None:
    """Two of the first class and one of the other, whoever they are: 6 · 2 hands."""
    hands = [partition([0] * 4 + [1] * 2, 2, seed=seed)[0] for seed in range(600)]
    seen = np.unique(hands, axis=0, return_counts=True)[1]
    assert len(seen) == 12
    assert chisquare(seen).pvalue > 0.001


@pytest.mark.parametrize("labels", [MNIST, CIFAR10])
@pytest.mark.parametrize("exponent", [0.1, 0.6])
def test_partition_of_single_classes_is_a_power_law(labels: np.ndarray, exponent: float) -> None:
    clients = partition(labels, 100, "n_class", "power_law", 1, power_law_exponent=exponent)
    counts = check_partition(clients, labels)
    assert ((counts > 0).sum(axis=1) == 1).all()
    assert counts.sum(axis=1).tolist() == client_sizes(len(labels), 100, exponent, 10).tolist()


@pytest.mark.parametrize(("labels", "limit"), [(MNIST, 1.059), (CIFAR10, 1.018)])
def test_partition_in_pairs_reaches_its_limit(labels: np.ndarray, limit: float) -> None:
    partition(labels, 100, "n_class", "power_law", power_law_exponent=limit)
    with pytest.raises(UserError, match=r"^power_law_exponent: "):
        partition(labels, 100, "n_class", "power_law", power_law_exponent=limit + 0.001)


def test_partition_takes_labels_in_any_form() -> None:
    expected = [c.tolist() for c in partition(DIGITS, 7, seed=1)]
    for labels in (DIGITS.tolist(), DIGITS.astype(np.uint8), torch.tensor(DIGITS)):
        assert [c.tolist() for c in partition(labels, 7, seed=1)] == expected
    assert [len(c) for c in partition([7, -3, 7, -3], 2, "n_class")] == [2, 2]


def exists(class_sizes: np.ndarray, sizes: np.ndarray, classes_per_client: int) -> bool:
    """Whether there is a split, by integer programming: amounts x, and held or not, z."""
    most = np.minimum.outer(sizes, class_sizes).ravel()
    cells = np.eye(len(most))
    of_clients = np.kron(np.eye(len(sizes)), np.ones(len(class_sizes)))
    of_classes = np.kron(np.ones(len(sizes)), np.eye(len(class_sizes)))
    constraints = [
        LinearConstraint(np.hstack([of_clients, 0 * of_clients]), sizes, sizes),
        LinearConstraint(np.hstack([of_classes, 0 * of_classes]), class_sizes, class_sizes),
        LinearConstraint(
            np.hstack([0 * of_clients, of_clients]), classes_per_client, classes_per_client
        ),
        LinearConstraint(np.hstack([cells, -cells]), lb=0),  # x >= z
        LinearConstraint(np.hstack([cells, -np.diag(most)]), ub=0),  # x <= most * z
    ]
    bounds = Bounds(0, np.concatenate([most, np.ones_like(most)]))
    nothing = np.zeros(2 * len(most))  # to be minimised
    result = milp(nothing, integrality=1, bounds=bounds, constraints=constraints)
    assert result.status in (0, 2), result.message  # solved, or proved impossible
    return result.status == 0


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=6)
    | st.lists(st.integers(1, 8), min_size=2, max_size=6),
    st.fixed_dictionaries(
        {
            "num_clients": st.integers(1, 8),
            "method": st.sampled_from((*METHODS, "n_class", "n_class")),
            "sizes": st.sampled_from(SIZES),
            "classes_per_client": st.integers(1, 6),
            "power_law_exponent": st.floats(0, 3),
            "min_samples": st.integers(1, 6),
            "alpha": st.floats(LEAST_ALPHA, 1.7e308),
        }
    ),
)
def test_partition_is_made_or_refused(class_sizes: list[int], settings: dict[str, Any]) -> None:
    """A split into classes is refused only where an exact solver proves that there is none."""
    labels = np.random.default_rng(0).permutation(np.repeat(range(len(class_sizes)), class_sizes))
    num_clients, method, per_client = (
        settings[key] for key in ("num_clients", "method", "classes_per_client")
    )
    free = method == "dirichlet_by_class"
    settings["sizes"] = "balanced" if free else settings["sizes"]
    uneven = settings["sizes"] == "power_law"
    least = settings["min_samples"] if free or uneven else 1
    least = max(least, per_client) if method == "n_class" else least
    try:
        clients = partition(labels, **settings)
    except UserError:
        if num_clients * least > len(labels):
            return
        assert method != "iid"
        if method == "n_class":
            law = settings["power_law_exponent"] if uneven else None
            sizes = client_sizes(len(labels), num_clients, law, least)
            assert not exists(np.array(class_sizes), sizes, per_client)
        else:  # of 2,000 draws, which α ≥ 1 makes nearly even, none with a quarter for everyone
            assert free
            assert settings["alpha"] < 1 or 4 * num_clients * least > len(labels)
        return
    counts = check_partition(clients, labels)
    held = counts.sum(axis=1)
    assert held.min() >= least
    if not free:
        law = settings["power_law_exponent"] if uneven else None
        assert held.tolist() == client_sizes(len(labels), num_clients, law, least).tolist()
    if method == "n_class":
        assert ((counts > 0).sum(axis=1) == per_client).all()
    elif method == "iid":
        complete = held >= len(class_sizes)
        assert (counts > 0)[complete][:, np.array(class_sizes) >= complete.sum()].all()


UNEQUAL = {"labels": [0] * 90 + [1] * 9, "num_clients": 10}
UNEVEN = {"sizes": "power_law"}
PAIRS = {"method": "n_class"}
FREE = {"method": "dirichlet_by_class"}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"num_clients": 0}, "num_clients: 0"),
        ({"method": "hetero"}, "method: 'hetero'"),
        ({"power_law_exponent": float("nan")}, "power_law_exponent: nan"),
        ({"seed": 10**5000}, "seed: a huge number"),
        ({"method": np.array(["iid", "x"])}, "method: a ndarray"),
        ({"labels": torch.zeros(4, dtype=torch.int64, device="meta")}, "labels: a Tensor: "),
        ({"labels": [0.0, 1.0]}, "labels: a list of float64 "),
        ({"labels": []}, "num_clients: 20: there are only 0 samples"),
        ({"num_clients": 1438}, "num_clients: 1438: .* 1437 "),
        (PAIRS | {"num_clients": 4}, "num_clients: 4: .* at least 5 "),
        (PAIRS | {"num_clients": 5}, "num_clients: 5"),
        (UNEVEN | {"num_clients": 100, "min_samples": 15}, "min_samples: 15: .* at most 14 "),
        (UNEVEN | PAIRS | {"classes_per_client": 200}, "classes_per_client: 200: .* 10"),
        (FREE | UNEVEN, "sizes: 'power_law'"),
        (FREE | {"min_samples": 72}, "min_samples: 72: .* at most 71 "),
        (FREE | {"min_samples": 71, "alpha": 1e-3}, "min_samples: 71: .* alpha "),
        (UNEQUAL | PAIRS, "num_clients: 10: .* at most 9 "),
        (UNEVEN | PAIRS | {"num_clients": 7}, "power_law_exponent: 1: .* for 2 classes"),
    ],
)
def test_partition_with_a_mistake_is_refused(arguments: dict, named: str) -> None:
    assert re.match(named, refusal(partition, **{"labels": DIGITS, "num_clients": 20} | arguments))


def test_refusal_names_the_recipes_key() -> None:
    for changed, key in (
        ({"num_clients": 4}, "train_args.client_num_in_total: 4: with 2 classes each"),
        ({"partition_method": "dirichlet", "partition_alpha": 0}, "data_args.partition_alpha: 0: "),
    ):
        assert refusal(load_federated, replace(RECIPE, **changed)).startswith(key)
