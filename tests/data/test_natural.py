"""Data by their owners: each client has one owner's samples; divisions are worked by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fednnnn_plugin as fp
from fednnnn_plugin.data.federated import FederatedData, load_federated
from fednnnn_plugin.data.own_data import bring_data

from ..tiny import DATA, quick_run
from .conftest import DIGITS, refusal

OWNERS = np.array(["b", "a", "b", "c", "a", "b", "d", "b"])  # of 0, 1, ..., 7
X, Y = torch.arange(8.0)[:, None], torch.arange(8) % 2
OF_TEST = ["c", "z", "a", "b", "a"]  # of 10, ..., 14
TEST = torch.arange(10.0, 15)[:, None], torch.arange(5) % 2
NATURAL: dict[str, Any] = {"partition_method": "natural", "min_samples": 1, "num_clients": 4}


def load(given: object, **spec: Any) -> FederatedData:
    mine = replace(DIGITS, dataset="<object>:mine", **NATURAL | spec)
    return load_federated(mine, bring_data(mine, given))


def held(data: FederatedData) -> tuple[list[list[float]], list[list[float]]]:
    """What each client trains on, and tests on."""
    train = [data.train_images[part, 0].tolist() for part in data.client_indices]
    parts = data.client_test_indices or [[]] * data.num_clients
    return train, [data.test_images[part, 0].tolist() for part in parts]


@pytest.mark.parametrize("method", ["natural", "n_class"])
@pytest.mark.parametrize("form", [list, np.asarray, lambda owners: np.array(owners, object)])
def test_each_owner_is_a_client(form: Any, method: str) -> None:
    """Of whatever method the recipe is, as with positions."""
    data = load((X, Y, *TEST, form([*OWNERS]), OF_TEST), partition_method=method)
    train, test = held(data)
    assert train == [[1, 4], [0, 2, 5, 7], [3], [6]]  # of a, b, c, d
    assert test == [[12, 14], [13], [10], []]
    assert data.test_images[:, 0].tolist() == [10, 11, 12, 13, 14]
    assert [len(data.train_labels), ("split" in data.fingerprint)] == [8, method != "natural"]
    alone = load((X, Y, *TEST, form([*OWNERS])), partition_method=method)
    assert held(alone) == (train, [[]] * 4)


def test_owners_of_few_samples_are_left_out() -> None:
    """With their test samples; those of z, who trains on nothing, are no one's and stay."""
    data = load((X, Y, *TEST, OWNERS, OF_TEST), min_samples=2, num_clients=2)
    assert held(data) == ([[1, 4], [0, 2, 5, 7]], [[12, 14], [13]])
    assert data.train_images[:, 0].tolist() == [0, 1, 2, 4, 5, 7]
    assert data.test_images[:, 0].tolist() == [11, 12, 13, 14]
    message = refusal(load, (X, Y, *TEST, OWNERS), min_samples=2, num_clients=3)
    assert message.startswith("train_args.client_num_in_total: 3: ")


def test_clients_are_drawn_by_the_seed() -> None:
    all_of_them = held(load((X, Y, *TEST, OWNERS)))[0]
    drawn = [held(load((X, Y, *TEST, OWNERS), num_clients=2, seed=seed))[0] for seed in range(20)]
    assert drawn[3] == held(load((X, Y, *TEST, OWNERS), num_clients=2, seed=3))[0]
    assert all(part in all_of_them for parts in drawn for part in parts)
    assert {len(parts) for parts in drawn} == {2}
    assert {parts[0][0] for parts in drawn} > {0.0, 1.0}


@pytest.mark.parametrize("joined", [False, True])
def test_test_part_within_clients(joined: bool) -> None:
    """A quarter of each, at least one, and not all: of 2, 4, 1 and 1 samples 1, 1, 0 and 0."""
    given = (X[:5], Y[:5], X[5:], Y[5:], OWNERS[:5], OWNERS[5:]) if joined else (X, Y, OWNERS)
    division = "within_clients" if joined else None
    data = load(given, test_fraction=0.25, test_division=division)
    train, test = held(data)
    assert [sorted(a + b) for a, b in zip(train, test, strict=True)] == [
        *([1, 4], [0, 2, 5, 7], [3], [6])
    ]
    assert [len(part) for part in test] == [1, 1, 0, 0]
    assert len(data.test_labels) == 2
    assert held(load((X, Y, OWNERS), test_fraction=0.25)) == (train, test)
    validated = load((X, Y, *TEST, OWNERS, OF_TEST), validation_fraction=0.5)
    parts = zip(*held(validated), strict=True)
    assert [sorted(a + b) for a, b in parts] == [[1, 4], [0, 2, 5, 7], [3], [6]]
    assert max(validated.test_images[:, 0].tolist()) < 8


def test_test_part_between_clients() -> None:
    """A quarter of four owners is one, whose samples are the whole test."""
    found = set()
    for seed in range(12):
        spec = {"test_fraction": 0.25, "test_division": "between_clients", "seed": seed}
        data = load((X, Y, OWNERS), num_clients=3, **spec)
        train, test = held(data)
        whole = data.test_images[:, 0].tolist()
        assert test == [[]] * 3
        assert sorted(sum(train, whole)) == [0, 1, 2, 3, 4, 5, 6, 7]
        found.add(tuple(whole))
    assert found <= {(1, 4), (0, 2, 5, 7), (3,), (6,)}
    assert len(found) > 2
    assert refusal(load, (X, Y, OWNERS), **spec).startswith("train_args.client_num_in_total: 4: ")


@pytest.mark.parametrize(
    ("given", "spec", "named"),
    [
        ((X, Y, *TEST), {}, "data_args.partition_method: natural: "),
        ((X, Y, OWNERS[:7]), {}, "data_args.dataset: <object>:mine: owners: "),
        ((X, Y, np.arange(8.0)), {}, "data_args.dataset: <object>:mine: owners: "),
        ((X, Y, *TEST, OWNERS, [*range(5)]), {}, "data_args.dataset: <object>:mine: owners: "),
        ((X, Y, OWNERS), {"partition_by": "writer"}, "data_args.partition_by: writer: "),
        (
            (X, Y, *TEST, OWNERS),
            {"test_division": "within_clients"},
            "data_args.test_division: ",
        ),
    ],
)
def test_owners_that_do_not_fit_are_refused(
    given: object, spec: dict[str, Any], named: str
) -> None:
    assert refusal(load, given, **spec).startswith(named)


def test_clients_with_tests_of_their_own() -> None:
    """Which the recipe chooses among, and divides anew, if it asks for the natural division."""
    clients = [(X[:2], Y[:2]), (X[2:5], Y[2:5]), (X[5:], Y[5:])]
    tests = [(TEST[0][:2], TEST[1][:2]), None, (TEST[0][2:], TEST[1][2:])]
    for given in ((clients, tests), (dict(enumerate(clients)), dict(enumerate(tests)))):
        data = load(given, num_clients=3)
        assert held(data) == ([[0, 1], [2, 3, 4], [5, 6, 7]], [[10, 11], [], [12, 13, 14]])
        data = load(given, num_clients=2, min_samples=3)
        assert held(data) == ([[2, 3, 4], [5, 6, 7]], [[], [12, 13, 14]])
        own = load(given, num_clients=3, partition_method="n_class", min_samples=3)
        assert (own.num_clients, "split" in own.fingerprint) == (3, True)
        whole = load(given, num_clients=3, test_division="within_clients", test_fraction=0.5)
        assert [len(part) for part in whole.client_test_indices] == [2, 2, 3]  # of 4, 3 and 6
    positions = (X, Y, *TEST, [[0, 2], [1, 3, 4], [5, 6, 7]])
    assert held(load(positions, num_clients=2, min_samples=3))[0] == [[1, 3, 4], [5, 6, 7]]
    nobodys = (*positions[:4], [[0, 2], [3, 4, 5], [6, 7]])  # without sample 1
    assert held(load(nobodys, num_clients=1, min_samples=3))[0] == [[3, 4, 5]]
    shared = (*positions[:4], [[0, 1], [1, 2]])
    assert held(load(shared, num_clients=2))[0] == [[0, 1], [1, 2]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "method", "changed"),
    [
        ({}, "own split", "split"),
        ({"partition_method": "natural", "client_num_in_total": 5}, "natural", "data_set"),
    ],
)
def test_resumed_run_has_the_same_owners(
    tmp_path: Path, keys: dict[str, Any], method: str, changed: str
) -> None:
    """And its number of clients is theirs."""
    owners = np.arange(140) % 5
    given = keys | {"data": (*DATA[:2], owners), "model": nn.Linear(6, 4), "comm_round": 1}
    records = fp.read_runs(quick_run(tmp_path / "run", **given).folder)
    assert records["client_num_in_total"].tolist() == [5]
    assert records["partition_method"].tolist() == [method]
    given["data"] = (*DATA[:2], owners[::-1].copy())
    with pytest.raises(fp.UserError, match=f"resume=True: {changed}"):
        quick_run(tmp_path / "run", **given | {"comm_round": 2}, resume=True)


def test_part_within_clients_is_drawn_by_the_seed() -> None:
    given = {"num_clients": 1, "test_fraction": 0.25}
    owners = np.zeros(8, dtype=int)
    found = [held(load((X, Y, owners), seed=s, **given))[1][0] for s in (0, 1, 2, 3, 0)]
    assert found[0] == found[4]
    assert len({*map(tuple, found)}) > 2


def test_part_within_clients_has_the_classes_of_each() -> None:
    """Of 6 and 2 samples of the two classes, a half."""
    y, owners = torch.tensor([0, 0, 1] * 2 + [0, 0]), np.zeros(8, dtype=int)
    for seed in range(8):
        data = load((X, y, owners), seed=seed, num_clients=1, test_fraction=0.5)
        assert data.test_labels.bincount().tolist() == [3, 1]


def test_moments_are_of_what_is_trained_on() -> None:
    images = (torch.arange(8, dtype=torch.uint8) * 30)[:, None, None, None]
    data = load((images, Y, OWNERS), test_fraction=0.5)
    assert data.normalised(data.train_images).mean().item() == pytest.approx(0, abs=1e-6)
