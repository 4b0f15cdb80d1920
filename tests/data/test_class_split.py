"""The search for n-class splits, held against an exact solver."""

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import block_diag, eye, hstack, kron, vstack

from fednnnn_plugin.data.class_split import class_shares
from fednnnn_plugin.data.client_sizes import client_sizes


def exists(class_sizes: np.ndarray, sizes: np.ndarray, classes_per_client: int) -> bool:
    """Whether there is a split, by integer programming: amounts x, and held or not, z."""
    num_clients, num_classes = len(sizes), len(class_sizes)
    cells = num_clients * num_classes
    rows = kron(eye(num_clients), np.ones((1, num_classes)))
    columns = kron(np.ones((1, num_clients)), eye(num_classes))
    most = np.minimum.outer(sizes, class_sizes).ravel().astype(float)
    sums = [block_diag([rows, rows]), hstack([columns, 0 * columns])]
    x_at_least_z = hstack([eye(cells), -eye(cells)])
    x_at_most_z = hstack([-eye(cells), eye(cells).multiply(most)])
    constraints = vstack([*sums, x_at_least_z, x_at_most_z])
    equal = np.concatenate([sizes, np.full(num_clients, classes_per_client), class_sizes])
    lower = np.concatenate([equal, np.zeros(2 * cells)])
    upper = np.concatenate([equal, np.full(2 * cells, np.inf)])
    result = milp(
        np.zeros(2 * cells),
        constraints=LinearConstraint(constraints.tocsr(), lower, upper),
        integrality=np.ones(2 * cells),
        bounds=Bounds(0, np.concatenate([most, np.ones(cells)])),
    )
    assert result.status in (0, 2), result.message  # solved, or proved impossible
    return result.status == 0


def draw_problem(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, int]:
    """A small one: classes equal, nearly so, very unequal, or of a few images."""
    num_classes = int(rng.integers(2, 7))
    num_clients = int(rng.integers(1, 9))
    classes_per_client = int(rng.integers(1, num_classes + 1))
    low, high = [(20, 21), (40, 60), (1, 60), (1, 8)][rng.integers(4)]
    class_sizes = rng.integers(low, high, num_classes) + rng.integers(0, 5)
    if class_sizes.sum() < num_clients * classes_per_client:
        return draw_problem(rng)
    exponent = None if rng.random() < 0.5 or classes_per_client == 1 else float(rng.random() * 1.5)
    sizes = client_sizes(int(class_sizes.sum()), num_clients, exponent, classes_per_client)
    return class_sizes, sizes, classes_per_client


@pytest.mark.parametrize("seed", range(25))
def test_class_split_is_found_where_there_is_one(seed: int) -> None:
    class_sizes, sizes, classes_per_client = draw_problem(np.random.default_rng(seed))
    shares = class_shares(class_sizes, sizes, classes_per_client, np.random.default_rng(seed))
    assert (shares is not None) == exists(class_sizes, sizes, classes_per_client)
    if shares is not None:
        assert (shares.sum(axis=0) == class_sizes).all()
        assert (shares.sum(axis=1) == sizes).all()
        assert ((shares > 0).sum(axis=1) == classes_per_client).all()
