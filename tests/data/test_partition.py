"""Partitions of every kind: what each promises, whatever the labels."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from fednnnn_plugin.data.load import load_images
from fednnnn_plugin.data.partition import partition
from fednnnn_plugin.errors import UserError

# Class sizes of MNIST's training images; a test below holds them against the files.
MNIST = np.repeat(np.arange(10), [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])
CIFAR10 = np.tile(np.arange(10), 5000)
DIGITS = load_digits().target[:1437]
PAPER_LIKE = [
    pytest.param(MNIST, 100, id="mnist"),
    pytest.param(CIFAR10, 100, id="cifar10"),
    pytest.param(DIGITS, 20, id="digits"),
]


def check_partition(clients: list[np.ndarray], labels: np.ndarray) -> np.ndarray:
    """Check that it is disjoint and covers every sample; return the counts of the classes."""
    assert (np.sort(np.concatenate(clients)) == np.arange(len(labels))).all()
    assert all(indices.dtype == np.int64 for indices in clients)
    assert all((np.diff(indices) > 0).all() for indices in clients)
    return np.stack([np.bincount(labels[c], minlength=labels.max() + 1) for c in clients])


def smallest_part(counts: np.ndarray) -> float:
    """The smallest part that a class has of a client that holds it."""
    return (counts / counts.sum(axis=1, keepdims=True))[counts > 0].min()


def test_two_clients_of_two_classes_by_hand() -> None:
    labels = np.array([0, 0, 1, 1, 0, 0, 1, 1])
    assert check_partition(partition(labels, 2, "n_class"), labels).tolist() == [[2, 2], [2, 2]]


def test_a_chain_that_has_one_solution() -> None:
    # Three clients of 4 and four classes: only a chain of shared classes works.
    labels = np.repeat([0, 1, 2, 3], [3, 3, 3, 3])
    counts = check_partition(partition(labels, 3, "n_class"), labels)
    held = sorted(sorted(row[row > 0].tolist()) for row in counts)
    assert held == [[1, 3], [1, 3], [2, 2]]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("labels", "num_clients"), PAPER_LIKE)
def test_balanced_two_class_clients(labels: np.ndarray, num_clients: int, seed: int) -> None:
    counts = check_partition(partition(labels, num_clients, "n_class", seed=seed), labels)
    assert np.ptp(counts.sum(axis=1)) <= 1
    assert ((counts > 0).sum(axis=1) == 2).all()
    assert smallest_part(counts) >= 0.4


@pytest.mark.parametrize("num_clients", [9, 11, 12, 13, 14, 15, 37, 50, 200, 500])
@pytest.mark.parametrize("labels", [MNIST, CIFAR10, DIGITS], ids=["mnist", "cifar10", "digits"])
def test_other_numbers_of_clients(labels: np.ndarray, num_clients: int) -> None:
    counts = check_partition(partition(labels, num_clients, "n_class"), labels)
    assert np.ptp(counts.sum(axis=1)) <= 1
    assert ((counts > 0).sum(axis=1) == 2).all()
    if 15 <= num_clients <= len(labels) / 10:  # of two samples one is half, of three a third
        assert smallest_part(counts) >= 0.35


@pytest.mark.parametrize("classes_per_client", [1, 3, 5, 10])
def test_other_numbers_of_classes(classes_per_client: int) -> None:
    labels = CIFAR10 % 5 if classes_per_client == 1 else CIFAR10
    clients = partition(labels, 100, "n_class", classes_per_client=classes_per_client)
    counts = check_partition(clients, labels)
    assert np.ptp(counts.sum(axis=1)) <= 1
    assert ((counts > 0).sum(axis=1) == classes_per_client).all()


@pytest.mark.parametrize(("labels", "num_clients"), PAPER_LIKE)
@pytest.mark.parametrize("sizes", ["balanced", "power_law"])
def test_iid_clients_hold_every_class(labels: np.ndarray, num_clients: int, sizes: str) -> None:
    counts = check_partition(partition(labels, num_clients, "iid", sizes), labels)
    assert (counts > 0).all()
    held = counts.sum(axis=1)
    assert np.ptp(held) <= 1 if sizes == "balanced" else held[0] > 10 * held[-1]
    # A random draw, not an equal one: the spread of one class is that of a hypergeometric.
    largest = counts[: num_clients // 2]
    expected = largest.sum(axis=1, keepdims=True) * np.bincount(labels) / len(labels)
    assert 0.5 < np.mean((largest - expected) ** 2 / expected) < 1.5


@pytest.mark.parametrize(("labels", "num_clients"), PAPER_LIKE)
@pytest.mark.parametrize("method", ["n_class", "dirichlet"])
def test_power_law_clients(labels: np.ndarray, num_clients: int, method: str) -> None:
    exponent = 0.7 if num_clients == 20 else 1.0
    clients = partition(
        labels, num_clients, method, "power_law", power_law_exponent=exponent, seed=3
    )
    counts = check_partition(clients, labels)
    held = counts.sum(axis=1)
    assert held.min() >= 10
    slope = np.polyfit(np.log(np.arange(1, num_clients + 1)), np.log(held), 1)[0]
    assert -slope == pytest.approx(exponent, rel=0.01)
    assert method == "dirichlet" or ((counts > 0).sum(axis=1) == 2).all()


@pytest.mark.parametrize(
    ("labels", "num_clients", "limit"),
    [(MNIST, 100, 1.059), (CIFAR10, 100, 1.018), (DIGITS, 20, 0.771)],
    ids=["mnist", "cifar10", "digits"],
)
def test_two_classes_reach_to_where_the_largest_client_needs_a_third(
    labels: np.ndarray, num_clients: int, limit: float
) -> None:
    two_largest = np.sort(np.bincount(labels))[-2:].sum()
    for exponent, fits in ((limit, True), (limit + 0.001, False)):
        largest = len(labels) / (np.arange(1.0, num_clients + 1) ** -exponent).sum()
        assert (round(largest) <= two_largest) == fits
    split = {"method": "n_class", "sizes": "power_law"}
    for seed in range(3):
        clients = partition(labels, num_clients, **split, power_law_exponent=limit, seed=seed)
        assert ((check_partition(clients, labels) > 0).sum(axis=1) == 2).all()
        with pytest.raises(UserError, match=rf"^power_law_exponent: .* {two_largest}: too few"):
            partition(labels, num_clients, **split, power_law_exponent=limit + 0.001, seed=seed)


@pytest.mark.parametrize("method", ["iid", "n_class", "dirichlet"])
def test_the_seed_decides_and_nothing_else(method: str) -> None:
    states = np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002
    first, again, other = (partition(DIGITS, 20, method, seed=s) for s in (1, 1, 2))
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))
    after = np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002
    assert after == states


def test_labels_may_be_a_list_an_array_or_a_tensor_of_any_integers() -> None:
    expected = [c.tolist() for c in partition(DIGITS, 7, seed=1)]
    for labels in (DIGITS.tolist(), DIGITS.astype(np.uint8), torch.tensor(DIGITS)):
        assert [c.tolist() for c in partition(labels, 7, seed=1)] == expected
    assert [len(c) for c in partition([7, -3, 7, -3], 2, "n_class")] == [2, 2]


@pytest.mark.parametrize("method", ["iid", "n_class", "dirichlet"])
def test_ten_thousand_clients(method: str) -> None:
    counts = check_partition(partition(MNIST, 10_000, method), MNIST)
    assert (counts.sum(axis=1) == 6).all()
    assert method != "n_class" or ((counts > 0).sum(axis=1) == 2).all()


@settings(max_examples=300, deadline=None)
@given(
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=120),
    num_clients=st.integers(1, 12),
    method=st.sampled_from(["iid", "n_class", "dirichlet"]),
    sizes=st.sampled_from(["balanced", "power_law"]),
    classes_per_client=st.integers(1, 6),
    exponent=st.floats(0, 3),
    alpha=st.floats(1e-320, 1e300),
    min_samples=st.integers(1, 6),
    seed=st.integers(0, 2**40),
)
def test_any_split_or_one_line(
    labels: list[int],
    num_clients: int,
    method: str,
    sizes: str,
    classes_per_client: int,
    exponent: float,
    alpha: float,
    min_samples: int,
    seed: int,
) -> None:
    array = np.array(labels)
    arguments = (classes_per_client, exponent, alpha, min_samples, seed)
    least = min_samples if sizes == "power_law" else 1
    refusal = None
    try:
        clients = partition(labels, num_clients, method, sizes, *arguments)
    except UserError as error:
        refusal = str(error)
    if refusal is not None:
        assert "\n" not in refusal
        rarest = np.bincount(array)[np.unique(array)].min()
        if method == "n_class":  # test_class_split.py holds its refusals against an exact solver
            return
        assert num_clients * least > len(labels) or (method == "iid" and rarest < num_clients)
        return
    counts = check_partition(clients, array)
    held = counts.sum(axis=1)
    assert np.ptp(held) <= 1 if sizes == "balanced" else held.min() >= least
    assert (np.diff(held) <= 0).all()
    num_classes = len(np.unique(array))
    if method == "n_class":
        assert ((counts > 0).sum(axis=1) == classes_per_client).all()
    elif method == "iid":
        assert ((counts > 0).sum(axis=1) == num_classes)[held >= num_classes].all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_clients": 0}, "num_clients: 0: must be a whole number, at least 1"),
        ({"num_clients": True}, "num_clients: True: "),
        ({"num_clients": 2.0}, "num_clients: 2.0: "),
        ({"num_clients": "2"}, "num_clients: '2': "),
        ({"num_clients": None}, "num_clients: None: "),
        ({"method": "hetero"}, "method: 'hetero': .*dirichlet"),
        ({"method": ["iid"]}, r"method: \['iid'\]: "),
        ({"sizes": "equal"}, "sizes: 'equal': .*balanced"),
        ({"classes_per_client": 0}, "classes_per_client: 0: "),
        ({"classes_per_client": np.bool_(True)}, "classes_per_client: .*True.*: "),
        ({"power_law_exponent": float("nan")}, "power_law_exponent: nan: "),
        ({"power_law_exponent": float("inf")}, "power_law_exponent: inf: "),
        ({"power_law_exponent": -0.1}, "power_law_exponent: -0.1: .* at least 0"),
        ({"power_law_exponent": "1"}, "power_law_exponent: '1': "),
        ({"power_law_exponent": False}, "power_law_exponent: False: "),
        ({"power_law_exponent": 1j}, "power_law_exponent: 1j: "),
        ({"alpha": 0}, "alpha: 0: .* greater than 0"),
        ({"alpha": float("nan")}, "alpha: nan: "),
        ({"alpha": None}, "alpha: None: "),
        ({"min_samples": 0}, "min_samples: 0: "),
        ({"seed": -1}, "seed: -1: must be a whole number, at least 0"),
        ({"labels": []}, "labels: "),
        ({"labels": [0.0, 1.0]}, "labels: .* got list of float64"),
        ({"labels": [True, False]}, "labels: .* got list of bool"),
        ({"labels": [[0, 1], [1, 0]]}, r"labels: .* with shape \[2, 2\]"),
        ({"labels": [[0], [1, 2]]}, "labels: "),
        ({"labels": None}, "labels: "),
        ({"labels": torch.zeros(4)}, "labels: .* got Tensor of float32"),
        ({"num_clients": 1438}, "num_clients: 1438: there are only 1437 "),
        ({"num_clients": 1438, "method": "dirichlet"}, "num_clients: 1438: there are only 1437 "),
        ({"method": "n_class", "classes_per_client": 11}, "classes_per_client: 11: .* only 10"),
        ({"method": "n_class", "num_clients": 4}, "num_clients: 4: .* at least 5 clients"),
        ({"method": "n_class", "num_clients": 719}, "num_clients: 719: .* at most 718 clients"),
        ({"method": "n_class", "num_clients": 5}, "num_clients: 5: found no way"),
        (
            {"sizes": "power_law", "num_clients": 100, "min_samples": 15},
            "min_samples: 15: 100 clients would need 1500 .* at most 14 is possible",
        ),
        (
            {"labels": [0] * 90 + [1] * 9, "num_clients": 10},
            "num_clients: 10: class 1 has 9 samples, too few for the 10 clients",
        ),
        (
            {"labels": [0] * 90 + [1] * 9, "num_clients": 10, "method": "n_class"},
            "num_clients: 10: the classes have too few samples .* at most 9 clients",
        ),
        (
            {"method": "n_class", "sizes": "power_law", "num_clients": 7},
            "power_law_exponent: 1: .* too few for classes_per_client=2 .* a smaller exponent",
        ),
        (
            {"method": "n_class", "sizes": "power_law", "classes_per_client": 1},
            "power_law_exponent: 1: .* too few for classes_per_client=1 ",
        ),
    ],
)
def test_bad_arguments_are_one_line(arguments: dict, message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}") as refused:
        partition(**{"labels": DIGITS, "num_clients": 20} | arguments)
    assert "\n" not in str(refused.value)


@pytest.mark.real_data
@pytest.mark.parametrize("dataset", ["mnist", "cifar10"])
def test_the_stand_ins_have_the_real_class_sizes(dataset: str, real_data_dir: Path) -> None:
    labels = load_images(dataset, real_data_dir, download=False, seed=0).pixels.train_labels
    stand_in = {"mnist": MNIST, "cifar10": CIFAR10}[dataset]
    assert np.bincount(labels.numpy()).tolist() == np.bincount(stand_in).tolist()
