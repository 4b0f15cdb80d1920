"""Clients of exactly so many classes: the split, or the limit that stands in its way."""

import math

import numpy as np

from fednnnn_plugin.data.class_split import class_shares
from fednnnn_plugin.data.client_sizes import Ints
from fednnnn_plugin.errors import UserError


def n_class_shares(
    class_sizes: Ints,
    client_sizes: Ints,
    classes_per_client: int,
    power_law_exponent: float | None,
    rng: np.random.Generator,
) -> Ints:
    """Samples of each class that every client holds, [num_clients, num_classes] int64.

    The counts have passed `check_counts`.
    """
    reason = _overfull(class_sizes, client_sizes, classes_per_client)
    if not reason:
        shares = class_shares(class_sizes, client_sizes, classes_per_client, rng)
        if shares is not None:
            return shares
        reason = f"found no way to give each client exactly {classes_per_client}"
    if power_law_exponent is None:
        where, value, more = "num_clients", f"{len(client_sizes)}", "more clients"
    else:
        where, value = "power_law_exponent", f"{power_law_exponent:g}"
        more = "a smaller exponent"
    raise UserError(
        where, f"{value}: {reason} classes", f"{more} or more classes a client make room"
    )


def _overfull(class_sizes: Ints, sizes: Ints, classes_per_client: int) -> str:
    """Say so where the q largest clients exceed the c·q largest classes, for the least such q."""
    by_size = np.sort(class_sizes)[::-1].cumsum()
    held = np.arange(1, len(sizes) + 1) * classes_per_client
    capacity = by_size[np.minimum(held, len(by_size)) - 1]
    excess = np.flatnonzero(sizes.cumsum() > capacity)
    if not len(excess):
        return ""
    q = int(excess[0])
    return (
        f"the largest {q + 1} of the clients would hold {sizes[: q + 1].sum()} samples, where the "
        f"largest classes have {capacity[q]}: too few for {classes_per_client}"
    )


def check_counts(class_sizes: Ints, clients: int, c: int) -> None:
    """Refuse a number of clients or of classes that no sizes of the clients allow."""
    num_classes = len(class_sizes)
    if c > num_classes:
        raise UserError("classes_per_client", f"{c}: the labels have only {num_classes} classes")
    if clients * c < num_classes:
        raise UserError(
            "num_clients",
            f"{clients}: with {c} classes each they cannot hold all {num_classes} classes",
            f"at least {math.ceil(num_classes / c)} clients are needed",
        )
    # A class of 3 samples is held by 3 clients at most.
    possible = (k for k in range(clients, 0, -1) if np.minimum(class_sizes, k).sum() >= k * c)
    if (most := next(possible, 0)) < clients:
        raise UserError(
            "num_clients",
            f"{clients}: the classes have too few samples for {c} classes a client",
            f"at most {most} clients are possible",
        )
