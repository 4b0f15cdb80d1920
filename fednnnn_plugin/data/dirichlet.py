"""Label skew by a Dirichlet distribution: for clients of given sizes, or with sizes left free."""

import numpy as np
from numpy.typing import NDArray

from fednnnn_plugin.data.client_sizes import Ints, check_least
from fednnnn_plugin.errors import UserError

Floats = NDArray[np.float64]

LEAST_ALPHA = 0.001

_SWEEPS, _CLOSE_ENOUGH = 2_000, 0.1  # samples, of a class
_LEAST_LOG = -600.0  # beside a client's largest: every class stays possible for every client
_DRAWS = 2_000  # of a whole split, until every client has enough
_MOST_ALPHA = 1e300  # beyond it the sum of the draws' gammas would not be finite


def dirichlet_shares(
    class_sizes: Ints, client_sizes: Ints, alpha: float, rng: np.random.Generator
) -> Ints:
    """Samples of each class that every client holds, [num_clients, num_classes] int64.

    1. *Draw*: the shares of the clients in each class, ``p_j ~ Dir(α, …, α)``, as FedML does.
    2. *Fit*: scale clients and classes in turn until the table ``p_kj`` has the given sums, which
       keeps the ratios of its rows and columns (iterative proportional fitting).
    3. *Round*: client by client to whole samples; what rounding leaves goes to the next client,
       and so every sum is exact.

    Source: Yurochkin et al. 2019, Bayesian nonparametric federated learning; FedML's
    ``partition_class_samples_with_dirichlet_distribution``. The fit: Deming & Stephan 1940.
    """
    table = np.exp(_log_shares((len(client_sizes), len(class_sizes)), alpha, rng))
    for _ in range(_SWEEPS):
        table *= class_sizes / table.sum(axis=0)
        table *= (client_sizes / table.sum(axis=1))[:, None]
        if np.abs(table.sum(axis=0) - class_sizes).max() < _CLOSE_ENOUGH:
            break
    # The last bits of a power differ between platforms: they are rounded away.
    return _rounded(table.round(6), class_sizes, client_sizes)


def _log_shares(shape: tuple[int, int], alpha: float, rng: np.random.Generator) -> Floats:
    """Logarithms of Gamma(α) draws: a Dirichlet draw up to the sums, which the fit decides.

    ``Gamma(α) = Gamma(α + 1) U^(1/α)``, as a small α would underflow.
    """
    uniform = 1.0 - rng.random(shape)  # above 0
    logs = np.log(rng.gamma(alpha + 1.0, size=shape)) + np.log(uniform) / alpha
    for axis in (0, 1, 0, 1):  # a first fit, of the largest alone, while no ratio is cut off
        logs = logs - logs.max(axis=axis, keepdims=True)
    return np.maximum(logs, _LEAST_LOG)


def _rounded(table: Floats, class_sizes: Ints, client_sizes: Ints) -> Ints:
    shares = np.zeros(table.shape, dtype=np.int64)
    left, owed = class_sizes.copy(), np.zeros(len(class_sizes))
    for row, wanted, size in zip(shares, table, client_sizes, strict=True):
        owed += wanted
        row[:] = np.clip(np.floor(owed), 0, left)
        while need := int(size - row.sum()):
            step = 1 if need > 0 else -1
            movable = np.flatnonzero(row < left if need > 0 else row > 0)
            order = np.argsort(step * (row - owed)[movable], kind="stable")
            row[movable[order[: abs(need)]]] += step
        owed -= row
        left -= row
    return shares


def class_by_class_shares(
    class_sizes: Ints, num_clients: int, alpha: float, min_samples: int, rng: np.random.Generator
) -> Ints:
    """Samples of each class that every client holds, [num_clients, num_classes] int64, sizes free.

    For one class after another ``p_j ~ Dir(α, …, α)`` by ``rng.dirichlet`` are the clients' shares
    of it, but 0 for clients that hold ``n / K`` samples already; the class is cut at the whole
    parts of its size times the sums of ``p_j``. All is drawn again until every client holds at
    least ``min_samples``.

    Raises:
        UserError: no draw gave every client so many.

    Source: Li et al. 2022, Federated learning on non-IID data silos: ``noniid-labeldir`` of
    NIID-Bench, and ``hetero`` of FedML.
    """
    total = int(class_sizes.sum())
    check_least(total, num_clients, min_samples)
    concentration = np.full(num_clients, min(alpha, _MOST_ALPHA))
    for _ in range(_DRAWS):
        shares = _cut(class_sizes, rng.dirichlet(concentration, len(class_sizes)))
        if shares is not None and shares.sum(axis=1).min() >= min_samples:
            return shares
    raise UserError(
        "min_samples",
        f"{min_samples}: in {_DRAWS} draws some client always had fewer",
        f"must be less, or alpha above {alpha:g}, or the number of clients below {num_clients}",
    )


def _cut(class_sizes: Ints, drawn: Floats) -> Ints | None:
    """Cut each class by its shares ``drawn`` [num_classes, num_clients]; None of no share left."""
    num_clients = drawn.shape[1]
    shares = np.zeros(drawn.shape[::-1], dtype=np.int64)
    held, even = np.zeros(num_clients, dtype=np.int64), class_sizes.sum() / num_clients
    for column, size, draw in zip(shares.T, class_sizes, drawn, strict=True):
        open_to = draw * (held < even)
        if not open_to.any():
            return None
        # The last bits of a draw differ between platforms: they are rounded away.
        cuts = ((open_to / open_to.sum()).cumsum() * size).round(6).astype(np.int64)[:-1]
        column[:] = np.diff(cuts, prepend=0, append=size)
        held += column
    return shares
