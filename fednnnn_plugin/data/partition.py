"""Division of a data set between clients, by class and by size."""

import math
from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np
import torch
from numpy.typing import NDArray

from fednnnn_plugin.data.client_sizes import client_sizes
from fednnnn_plugin.data.iid import iid_shares
from fednnnn_plugin.data.n_class import NClassSplit
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.seeds import derive_seed

METHODS = ("iid", "n_class")
SIZES = ("balanced", "power_law")

Ints = NDArray[np.int64]


def partition(
    labels: Sequence[int] | NDArray[np.integer[Any]] | torch.Tensor,
    num_clients: int,
    method: str = "iid",
    sizes: str = "balanced",
    classes_per_client: int = 2,
    power_law_exponent: float = 1.0,
    min_samples: int = 10,
    seed: int = 0,
) -> list[Ints]:
    """Deal every image to exactly one client.

    Sizes: ``balanced`` ones differ by at most 1; ``power_law`` ones follow
    ``n_k ∝ rank^(-power_law_exponent)``, and clients that the law would give fewer than
    ``min_samples`` hold ``min_samples``. Client 0 is the largest, then they fall. Classes: ``iid``
    deals at random, and each client of at least as many images as there are classes holds every
    class; ``n_class`` gives each client exactly ``classes_per_client`` classes, in parts as even
    as the best of some random draws. No global generator is touched.

    Args:
        labels: class of each image, [n] integers: list, array or tensor.
        num_clients: K, at least 1.
        method: ``iid`` or ``n_class``.
        sizes: ``balanced`` or ``power_law``.
        classes_per_client: distinct classes of each client, under ``n_class``.
        power_law_exponent: a, finite and at least 0, under ``power_law``.
        min_samples: images of the smallest client, at least 1, under ``power_law``.
        seed: at least 0; the same seed and labels give the same split on every platform.

    Returns:
        For each client the positions of its images in ``labels``, int64, ascending.

    Raises:
        UserError: a bad argument, or a split that these labels do not allow: it names the limit,
            and where the exponent is in the way the largest one that is possible.

    Example:
        >>> [len(indices) for indices in partition([0, 1, 0, 1, 0], num_clients=2)]
        [3, 2]

    Source: conditions i) to iv) of the paper's experiments; it gives no exponent.
    """
    checked_labels = _labels(labels)
    num_clients = _whole_number("num_clients", num_clients, least=1)
    _one_of("method", method, METHODS)
    _one_of("sizes", sizes, SIZES)
    classes_per_client = _whole_number("classes_per_client", classes_per_client, least=1)
    checked_exponent = _exponent(power_law_exponent)
    exponent = checked_exponent if sizes == "power_law" else None
    min_samples = _whole_number("min_samples", min_samples, least=1)
    seed = _whole_number("seed", seed, least=0)
    rng_seed = derive_seed(seed, "partition")

    classes, class_of, class_sizes = np.unique(
        checked_labels, return_inverse=True, return_counts=True
    )
    all_sizes = client_sizes(len(checked_labels), num_clients, exponent, min_samples)
    if method == "iid":
        shares = iid_shares(classes, class_sizes, all_sizes, np.random.default_rng(rng_seed))
    else:
        shares = NClassSplit(
            class_sizes, num_clients, classes_per_client, exponent, min_samples, rng_seed
        ).shares()
    return _deal(class_of, shares, np.random.default_rng(derive_seed(seed, "deal")))


def _deal(class_of: NDArray[np.integer[Any]], shares: Ints, rng: np.random.Generator) -> list[Ints]:
    """Positions of each client, drawn from every class as ``shares`` [clients, classes] says."""
    hands: list[list[Ints]] = [[] for _ in shares]
    for j, column in enumerate(shares.T):
        drawn = rng.permutation(np.flatnonzero(class_of == j))
        for hand, images in zip(hands, np.split(drawn, column[:-1].cumsum()), strict=True):
            hand.append(images)
    return [np.sort(np.concatenate(hand)) for hand in hands]


def _labels(
    labels: Sequence[int] | NDArray[np.integer[Any]] | torch.Tensor,
) -> NDArray[np.integer[Any]]:
    try:
        host = labels.detach().cpu() if isinstance(labels, torch.Tensor) else labels
        array = np.asarray(host)
    except (TypeError, ValueError):  # a ragged list
        array = np.empty(0, dtype=np.object_)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer) or not array.size:
        raise UserError(
            "labels: expected a non-empty, one-dimensional list, array or tensor of integers, "
            f"got {type(labels).__name__} of {array.dtype} with shape {list(array.shape)}"
        )
    return array


def _whole_number(name: str, value: object, least: int) -> int:
    number = None
    if isinstance(value, SupportsIndex) and not isinstance(value, bool | np.bool_):
        number = value.__index__()
    if number is None or number < least:
        raise UserError(f"{name}: {value!r}: must be a whole number, at least {least}")
    return number


def _exponent(value: object) -> float:
    number = math.nan
    if isinstance(value, int | float | np.number) and not isinstance(
        value, bool | np.complexfloating
    ):
        number = float(value)
    if not 0 <= number < math.inf:
        raise UserError(f"power_law_exponent: {value!r}: must be a finite number, at least 0")
    return number


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UserError(f"{name}: {value!r}: must be {' or '.join(allowed)}")
