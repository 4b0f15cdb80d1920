"""Division of a data set between clients, by class and by size."""

import sys
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fednnnn_plugin.data.class_counts import whole_numbers
from fednnnn_plugin.data.class_split import places_of_classes
from fednnnn_plugin.data.client_sizes import Ints, client_sizes
from fednnnn_plugin.data.dirichlet import LEAST_ALPHA, class_by_class_shares, dirichlet_shares
from fednnnn_plugin.data.n_class import check_counts, n_class_shares
from fednnnn_plugin.errors import UserError, shown
from fednnnn_plugin.seeds import derive_seed

_FREE = "dirichlet_by_class"  # leaves the sizes free
METHODS = ("iid", "n_class", "dirichlet", _FREE)
SIZES = ("balanced", "power_law")

Labels = Sequence[int] | NDArray[np.integer[Any]] | torch.Tensor


def partition(
    labels: Labels,
    num_clients: int,
    method: str = "iid",
    sizes: str = "balanced",
    classes_per_client: int = 2,
    power_law_exponent: float = 1.0,
    min_samples: int = 10,
    seed: int = 0,
    *,
    alpha: float = 0.5,
) -> list[Ints]:
    """Assign every sample to exactly one client.

    ``sizes`` sets the clients' sizes, in descending order:

    - ``balanced``: they differ by at most 1;
    - ``power_law``: ``n_k ∝ rank^(-power_law_exponent)``, but at least ``min_samples``.

    The ``method`` divides the classes:

    - ``iid``: at random; a client with at least as many samples as classes has every class of
      which there are enough for all such clients;
    - ``n_class``: each client has exactly ``classes_per_client`` classes, in nearly equal parts:
      the most even of several random draws;
    - ``dirichlet``: the clients' shares of each class are drawn from Dir(``alpha``), then scaled
      to the clients' sizes;
    - ``dirichlet_by_class``: without the scaling, as in NIID-Bench and FedML. The sizes result
      from the draw, in no order, and it is repeated until each is at least ``min_samples``.

    No global generator is used.

    Args:
        labels: class of each sample, [n] integers: list, array or tensor.
        num_clients: K, at least 1.
        method: as above.
        sizes: as above; for ``dirichlet_by_class``, which does not use it, ``balanced``.
        classes_per_client: at least 1, for ``n_class``.
        power_law_exponent: finite and at least 0, for ``power_law``.
        min_samples: at least 1, for ``power_law`` and ``dirichlet_by_class``.
        seed: at least 0; the same seed and labels give the same split on every platform.
        alpha: finite and at least 0.001, for both kinds of ``dirichlet``: the smaller, the fewer
            classes a client has.

    Returns:
        For each client the positions of its samples in ``labels``, int64, ascending.

    Raises:
        UserError: a bad argument, or a partition that these labels do not allow, with the limit.

    Example:
        >>> from fednnnn_plugin import partition
        >>> [len(indices) for indices in partition([0, 1, 0, 1, 0], num_clients=2)]
        [3, 2]

    Source: conditions i) to iv) of the paper's experiments; ``dirichlet``: Yurochkin et al.,
    "Bayesian Nonparametric Federated Learning of Neural Networks", ICML 2019;
    ``dirichlet_by_class``: Li et al., "Federated Learning on Non-IID Data Silos", ICDE 2022.
    """
    checked_labels = whole_numbers(
        labels, "labels", "must be the class of each sample, [n] integers: list, array or tensor"
    )
    num_clients = _whole_number("num_clients", num_clients, least=1)
    if num_clients > len(checked_labels):
        raise UserError(
            "num_clients",
            f"{shown(num_clients)}: there are only {len(checked_labels)} samples, and every "
            "client needs at least one",
        )
    for name, value, allowed in (("method", method, METHODS), ("sizes", sizes, SIZES)):
        if not isinstance(value, str) or value not in allowed:
            raise UserError(name, shown(value), f"must be one of {', '.join(allowed)}")
    classes_per_client = _whole_number("classes_per_client", classes_per_client, least=1)
    checked_exponent = _number("power_law_exponent", power_law_exponent, least=0)
    exponent = checked_exponent if sizes == "power_law" else None
    alpha = _number("alpha", alpha, least=LEAST_ALPHA)
    min_samples = _whole_number("min_samples", min_samples, least=1)
    seed = _whole_number("seed", seed, least=0)

    if method == _FREE and sizes != "balanced":
        raise UserError("sizes", f"{shown(sizes)}: {method} leaves them free", "must be balanced")

    _, class_of, class_sizes = np.unique(checked_labels, return_inverse=True, return_counts=True)
    if method == "n_class":
        check_counts(class_sizes, num_clients, classes_per_client)
        min_samples = max(min_samples, classes_per_client)
    rng = np.random.default_rng(derive_seed(seed, "partition"))
    if method == _FREE:
        shares = class_by_class_shares(class_sizes, num_clients, alpha, min_samples, rng)
    else:
        held = client_sizes(len(checked_labels), num_clients, exponent, min_samples)
        if method == "iid":
            shares = _iid_shares(class_sizes, held, rng)
        elif method == "n_class":
            shares = n_class_shares(class_sizes, held, classes_per_client, exponent, rng)
        else:
            shares = dirichlet_shares(class_sizes, held, alpha, rng)
    return _positions(class_of, shares, np.random.default_rng(derive_seed(seed, "deal")))


def partition_name(method: str, sizes: str) -> str:
    """Name a partition: ``n_class, balanced``; by the method alone where the sizes are free."""
    return method if method in (_FREE, "natural") else f"{method}, {sizes}"


def _iid_shares(class_sizes: Ints, client_sizes: Ints, rng: np.random.Generator) -> Ints:
    """Each client of at least as many samples as classes gets one of every class, the rest chance.

    A class of fewer samples than there are such clients is left to chance.

    Returns:
        Samples of each class that every client holds, [num_clients, num_classes] int64.
    """
    num_clients, num_classes = len(client_sizes), len(class_sizes)
    complete = client_sizes >= num_classes
    frequent = class_sizes >= complete.sum()
    shares = np.outer(complete, frequent).astype(np.int64)
    left = class_sizes - shares.sum(axis=0)
    owners = np.repeat(np.arange(num_clients), client_sizes - shares.sum(axis=1))
    drawn = rng.permutation(np.repeat(np.arange(num_classes), left))
    np.add.at(shares, (owners, drawn), 1)
    return shares


def _positions(
    class_of: NDArray[np.integer[Any]], shares: Ints, rng: np.random.Generator
) -> list[Ints]:
    """Positions of each client, drawn from every class as ``shares`` [clients, classes] says."""
    parts: list[list[Ints]] = [[] for _ in shares]
    for places, column in zip(places_of_classes(class_of, shares.shape[1]), shares.T, strict=True):
        drawn = rng.permutation(places)
        for part, taken in zip(parts, np.split(drawn, column[:-1].cumsum()), strict=True):
            part.append(taken)
    return [np.sort(np.concatenate(part)) for part in parts]


def _whole_number(name: str, value: object, least: int) -> int:
    if not isinstance(value, bool) and isinstance(value, Integral) and least <= int(value) < 2**64:
        return int(value)
    raise UserError(name, shown(value), f"must be a whole number, at least {least} and below 2**64")


def _number(name: str, value: Any, least: float) -> float:
    real = isinstance(value, Real) and not isinstance(value, bool)
    if not real or not least <= value <= sys.float_info.max:
        raise UserError(name, shown(value), f"must be a finite number, at least {least}")
    return float(value)
