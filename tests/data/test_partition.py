import hashlib
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from fednnnn_plugin.data.federated import load_images
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


def assert_is_a_partition(clients: list[np.ndarray], labels: np.ndarray) -> None:
    """Disjoint, and covers every image."""
    assert (np.sort(np.concatenate(clients)) == np.arange(len(labels))).all()
    assert all(indices.dtype == np.int64 for indices in clients)
    assert all((np.diff(indices) > 0).all() for indices in clients)


def class_counts(clients: list[np.ndarray], labels: np.ndarray) -> np.ndarray:
    return np.stack([np.bincount(labels[c], minlength=labels.max() + 1) for c in clients])


def sizes_of(clients: list[np.ndarray]) -> np.ndarray:
    return np.array([len(indices) for indices in clients])


def smallest_part(counts: np.ndarray) -> float:
    """The smallest part that a class has of a client that holds it."""
    return (counts / counts.sum(axis=1, keepdims=True))[counts > 0].min()


def largest_exponent(labels: np.ndarray, num_clients: int, seed: int = 0) -> float:
    with pytest.raises(UserError) as refused:
        partition(labels, num_clients, "n_class", "power_law", power_law_exponent=1.3, seed=seed)
    assert "more than classes_per_client=2 classes" in str(refused.value)
    return float(str(refused.value).rsplit(maxsplit=1)[1])


def test_two_clients_of_two_classes_by_hand() -> None:
    clients = partition([0, 0, 1, 1, 0, 0, 1, 1], 2, "n_class")
    counts = class_counts(clients, np.array([0, 0, 1, 1, 0, 0, 1, 1]))
    assert counts.tolist() == [[2, 2], [2, 2]]


def test_a_chain_that_has_one_solution() -> None:
    # Three clients of 4 and four classes: only a chain of shared classes works.
    labels = np.repeat([0, 1, 2, 3], [3, 3, 3, 3])
    clients = partition(labels, 3, "n_class")
    assert sorted(sorted(row[row > 0].tolist()) for row in class_counts(clients, labels)) == [
        [1, 3],
        [1, 3],
        [2, 2],
    ]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("labels", "num_clients"), PAPER_LIKE)
def test_balanced_two_class_clients(labels: np.ndarray, num_clients: int, seed: int) -> None:
    clients = partition(labels, num_clients, "n_class", seed=seed)
    assert_is_a_partition(clients, labels)
    assert np.ptp(sizes_of(clients)) <= 1
    counts = class_counts(clients, labels)
    assert ((counts > 0).sum(axis=1) == 2).all()
    assert smallest_part(counts) >= 0.4


@pytest.mark.parametrize("num_clients", [10, 15, 20, 37, 50, 200, 500])
@pytest.mark.parametrize("labels", [MNIST, CIFAR10, DIGITS])
def test_other_numbers_of_clients_are_as_even(labels: np.ndarray, num_clients: int) -> None:
    clients = partition(labels, num_clients, "n_class")
    assert_is_a_partition(clients, labels)
    assert np.ptp(sizes_of(clients)) <= 1
    counts = class_counts(clients, labels)
    assert ((counts > 0).sum(axis=1) == 2).all()
    if len(labels) >= 10 * num_clients:  # of two images one is half, of three a third
        assert smallest_part(counts) >= 0.35


@pytest.mark.parametrize("num_clients", [9, 11, 12, 13, 14])
@pytest.mark.parametrize("labels", [MNIST, CIFAR10, DIGITS])
def test_hardly_enough_clients_still_hold_exactly_two(labels: np.ndarray, num_clients: int) -> None:
    counts = class_counts(partition(labels, num_clients, "n_class"), labels)
    assert ((counts > 0).sum(axis=1) == 2).all()
    assert np.ptp(counts.sum(axis=1)) <= 1


@pytest.mark.parametrize("classes_per_client", [1, 3, 5, 9, 10])
@pytest.mark.parametrize(("labels", "num_clients"), PAPER_LIKE[1:])
def test_other_numbers_of_classes(
    labels: np.ndarray, num_clients: int, classes_per_client: int
) -> None:
    if classes_per_client == 1:
        labels = labels[: len(labels) // 1000 * 1000] % 5  # 5 classes, which 20 or 100 divide
        labels = np.sort(labels) if len(set(np.bincount(labels))) == 1 else np.arange(1000) % 5
    clients = partition(labels, num_clients, "n_class", classes_per_client=classes_per_client)
    assert_is_a_partition(clients, labels)
    assert np.ptp(sizes_of(clients)) <= 1
    counts = class_counts(clients, labels)
    assert ((counts > 0).sum(axis=1) == classes_per_client).all()


@pytest.mark.parametrize(("labels", "num_clients"), PAPER_LIKE)
@pytest.mark.parametrize("sizes", ["balanced", "power_law"])
def test_iid_clients_hold_every_class(labels: np.ndarray, num_clients: int, sizes: str) -> None:
    clients = partition(labels, num_clients, "iid", sizes)
    assert_is_a_partition(clients, labels)
    counts = class_counts(clients, labels)
    assert (counts > 0).all()
    held = sizes_of(clients)
    assert np.ptp(held) <= 1 if sizes == "balanced" else held[0] > 10 * held[-1]
    # A random draw, not an equal one: the spread of one class is that of a hypergeometric.
    largest = counts[: num_clients // 2]
    expected = largest.sum(axis=1, keepdims=True) * np.bincount(labels) / len(labels)
    assert 0.5 < np.mean((largest - expected) ** 2 / expected) < 1.5


@pytest.mark.parametrize(("labels", "num_clients"), PAPER_LIKE)
def test_power_law_two_class_clients(labels: np.ndarray, num_clients: int) -> None:
    exponent = 0.7 if num_clients == 20 else 1.0
    clients = partition(
        labels, num_clients, "n_class", "power_law", power_law_exponent=exponent, seed=3
    )
    assert_is_a_partition(clients, labels)
    held = sizes_of(clients)
    assert held.min() >= 10
    slope = np.polyfit(np.log(np.arange(1, num_clients + 1)), np.log(held), 1)[0]
    assert -slope == pytest.approx(exponent, rel=0.01)
    assert ((class_counts(clients, labels) > 0).sum(axis=1) == 2).all()


@pytest.mark.parametrize(
    ("labels", "num_clients", "limit"),
    [(MNIST, 100, 1.059), (CIFAR10, 100, 1.018), (DIGITS, 20, 0.771)],
    ids=["mnist", "cifar10", "digits"],
)
def test_the_largest_exponent_is_named_and_holds(
    labels: np.ndarray, num_clients: int, limit: float
) -> None:
    assert largest_exponent(labels, num_clients) == limit
    for seed in range(3):
        for below in (0.0, 0.001, 0.01):
            clients = partition(
                labels,
                num_clients,
                "n_class",
                "power_law",
                power_law_exponent=limit - below,
                seed=seed,
            )
            assert_is_a_partition(clients, labels)
            assert ((class_counts(clients, labels) > 0).sum(axis=1) == 2).all()
        with pytest.raises(UserError, match=f"is {limit}$"):
            partition(
                labels,
                num_clients,
                "n_class",
                "power_law",
                power_law_exponent=limit + 0.001,
                seed=seed,
            )


def test_the_limit_is_where_the_largest_client_needs_a_third_class() -> None:
    for labels, clients, limit in ((MNIST, 100, 1.059), (CIFAR10, 100, 1.018), (DIGITS, 20, 0.771)):
        two_largest = np.sort(np.bincount(labels))[-2:].sum()
        for exponent, fits in ((limit, True), (limit + 0.001, False)):
            largest = len(labels) / (np.arange(1.0, clients + 1) ** -exponent).sum()
            assert (round(largest) <= two_largest) == fits


def test_other_seeds_give_other_splits_and_the_same_seed_the_same() -> None:
    for method in ("iid", "n_class"):
        first, again, other = (partition(DIGITS, 20, method, seed=s) for s in (1, 1, 2))
        assert all((a == b).all() for a, b in zip(first, again, strict=True))
        assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))
    held = {
        tuple((class_counts(partition(CIFAR10, 100, "n_class", seed=s), CIFAR10)[0] > 0).tolist())
        for s in range(20)
    }
    assert len(held) > 10  # the pair of client 0 is drawn, not always the same


@pytest.mark.parametrize(
    ("method", "sizes", "digest"),
    [
        ("iid", "balanced", "296e9d8f3e42cba2"),
        ("iid", "power_law", "652e3efe8d951ef0"),
        ("n_class", "balanced", "01a28a8326581fd4"),
        ("n_class", "power_law", "b271f69829fcefcf"),
    ],
)
def test_a_seed_gives_this_split_on_every_platform(method: str, sizes: str, digest: str) -> None:
    clients = partition(DIGITS, 20, method, sizes, power_law_exponent=0.7, seed=7)
    text = "/".join(",".join(map(str, indices)) for indices in clients)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == digest


def test_labels_may_be_a_list_an_array_or_a_tensor() -> None:
    expected = [c.tolist() for c in partition(DIGITS, 7, seed=1)]
    for labels in (DIGITS.tolist(), DIGITS.astype(np.uint8), torch.tensor(DIGITS)):
        assert [c.tolist() for c in partition(labels, 7, seed=1)] == expected


def test_labels_need_not_be_0_to_n() -> None:
    clients = partition([7, -3, 7, -3], 2, "n_class")
    assert [len(c) for c in clients] == [2, 2]


def test_no_global_generator_moves() -> None:
    before = np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002
    partition(DIGITS, 20, "n_class")
    partition(DIGITS, 20, "iid", "power_law")
    after = np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002
    assert after == before


def test_it_is_fast() -> None:
    start = time.process_time()
    partition(MNIST, 100, "n_class")
    assert time.process_time() - start < 1.0


def split_or_one_line(*arguments, **named) -> list[np.ndarray] | None:
    refusal = ""
    try:
        return partition(*arguments, **named)
    except UserError as error:
        refusal = str(error)
    assert "\n" not in refusal
    return None


label_lists = st.lists(st.integers(0, 5), min_size=1, max_size=120)


@settings(max_examples=200, deadline=None)
@given(
    labels=label_lists,
    num_clients=st.integers(1, 12),
    sizes=st.sampled_from(["balanced", "power_law"]),
    exponent=st.floats(0, 3),
    min_samples=st.integers(1, 6),
    seed=st.integers(0, 2**40),
)
def test_any_iid_split_or_a_user_error(
    labels: list[int], num_clients: int, sizes: str, exponent: float, min_samples: int, seed: int
) -> None:
    array = np.array(labels)
    clients = split_or_one_line(
        labels,
        num_clients,
        method="iid",
        sizes=sizes,
        power_law_exponent=exponent,
        min_samples=min_samples,
        seed=seed,
    )
    if clients is None:
        present = np.bincount(array)[np.unique(array)]
        few = num_clients * (min_samples if sizes == "power_law" else 1) > len(labels)
        assert few or present.min() < num_clients
        return
    assert_is_a_partition(clients, array)
    held = sizes_of(clients)
    assert np.ptp(held) <= 1 if sizes == "balanced" else held.min() >= min_samples
    num_classes = len(np.unique(array))
    for indices in clients:
        assert len(indices) < num_classes or len(np.unique(array[indices])) == num_classes


@settings(max_examples=200, deadline=None)
@given(
    labels=label_lists,
    num_clients=st.integers(1, 12),
    classes_per_client=st.integers(1, 6),
    sizes=st.sampled_from(["balanced", "power_law"]),
    exponent=st.floats(0, 2),
    seed=st.integers(0, 99),
)
def test_any_n_class_split_or_a_user_error(
    labels: list[int],
    num_clients: int,
    classes_per_client: int,
    sizes: str,
    exponent: float,
    seed: int,
) -> None:
    array = np.array(labels)
    clients = split_or_one_line(
        labels, num_clients, "n_class", sizes, classes_per_client, exponent, 2, seed
    )
    if clients is None:
        return  # test_class_split.py holds refusals against an exact solver
    assert_is_a_partition(clients, array)
    held = sizes_of(clients)
    assert np.ptp(held) <= 1 if sizes == "balanced" else held.min() >= 2
    for indices in clients:
        assert len(np.unique(array[indices])) == classes_per_client


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_clients": 0}, "num_clients: 0: must be a whole number, at least 1"),
        ({"num_clients": True}, "num_clients: True: must be"),
        ({"num_clients": 2.0}, "num_clients: 2.0: must be"),
        ({"num_clients": "2"}, "num_clients: '2': must be"),
        ({"num_clients": None}, "num_clients: None: must be"),
        ({"method": "dirichlet"}, "method: 'dirichlet': must be iid or n_class"),
        ({"method": ["iid"]}, r"method: \['iid'\]: must be"),
        ({"sizes": "equal"}, "sizes: 'equal': must be balanced or power_law"),
        ({"classes_per_client": 0}, "classes_per_client: 0: must be"),
        ({"classes_per_client": np.bool_(True)}, "classes_per_client: .*True.*: must be"),
        ({"power_law_exponent": float("nan")}, "power_law_exponent: nan: must be a finite"),
        ({"power_law_exponent": float("inf")}, "power_law_exponent: inf: must be"),
        ({"power_law_exponent": -0.1}, "power_law_exponent: -0.1: must be"),
        ({"power_law_exponent": "1"}, "power_law_exponent: '1': must be"),
        ({"power_law_exponent": False}, "power_law_exponent: False: must be"),
        ({"power_law_exponent": 1j}, "power_law_exponent: 1j: must be"),
        ({"min_samples": 0}, "min_samples: 0: must be"),
        ({"seed": -1}, "seed: -1: must be a whole number, at least 0"),
        ({"seed": None}, "seed: None: must be"),
        ({"labels": []}, "labels: expected a non-empty"),
        ({"labels": [0.0, 1.0]}, "labels: expected .* got list of float64"),
        ({"labels": [True, False]}, "labels: expected .* got list of bool"),
        ({"labels": [[0, 1], [1, 0]]}, r"labels: expected .* with shape \[2, 2\]"),
        ({"labels": [[0], [1, 2]]}, "labels: expected"),
        ({"labels": None}, "labels: expected"),
        ({"labels": torch.zeros(4)}, "labels: expected .* got Tensor of float32"),
        ({"num_clients": 1438}, "num_clients: 1438: there are only 1437 images"),
        ({"method": "n_class", "classes_per_client": 11}, "classes_per_client: 11: .* only 10"),
        ({"method": "n_class", "num_clients": 4}, "num_clients: 4: .* at least 5 clients"),
        ({"method": "n_class", "num_clients": 719}, "num_clients: 719: .* at most 718 clients"),
        ({"method": "n_class", "num_clients": 5}, "num_clients: 5: found no way .* balanced"),
        (
            {"sizes": "power_law", "num_clients": 100, "min_samples": 15},
            "min_samples: 15: 100 clients would need 1500 images, .* at most 14 is possible",
        ),
        (
            {"labels": [0] * 90 + [1] * 9, "num_clients": 10},
            "num_clients: 10: class 1 has 9 images, too few for the 10 clients",
        ),
        (
            {"labels": [0] * 90 + [1] * 9, "num_clients": 10, "method": "n_class"},
            "num_clients: 10: the classes have too few images .* at most 9 clients",
        ),
        (
            {"method": "n_class", "sizes": "power_law", "num_clients": 7},
            "power_law_exponent: 1: the largest client .* is none, not even 0",
        ),
        (
            {
                "labels": [0] * 40 + [1] * 20 + [2] * 30 + [3] * 30,
                "method": "n_class",
                "sizes": "power_law",
                "num_clients": 2,
                "power_law_exponent": 0.1,
            },
            "power_law_exponent: 0.1: found no way to give each client exactly .* is 0.0",
        ),
        (
            {"method": "n_class", "sizes": "power_law", "classes_per_client": 1},
            "power_law_exponent: 1: the largest client .* is none, not even 0",
        ),
    ],
)
def test_bad_arguments_are_one_line(arguments: dict, message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}") as refused:
        partition(**{"labels": DIGITS, "num_clients": 20} | arguments)
    assert "\n" not in str(refused.value)


@pytest.mark.real_data
@pytest.mark.parametrize(("dataset", "num_clients"), [("mnist", 100), ("cifar10", 100)])
def test_on_the_real_labels(dataset: str, num_clients: int, real_data_dir: Path) -> None:
    images = load_images(dataset, real_data_dir, download=False, seed=0)
    labels = images.pixels.train_labels.numpy()
    stand_in = {"mnist": MNIST, "cifar10": CIFAR10}[dataset]
    assert (np.bincount(labels) == np.bincount(stand_in)).all()
    for sizes in ("balanced", "power_law"):
        clients = partition(labels, num_clients, "n_class", sizes)
        assert_is_a_partition(clients, labels)
        assert ((class_counts(clients, labels) > 0).sum(axis=1) == 2).all()
        clients = partition(labels, num_clients, "iid", sizes)
        assert_is_a_partition(clients, labels)
        assert (class_counts(clients, labels) > 0).all()
