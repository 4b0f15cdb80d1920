"""Label skew by a Dirichlet distribution, for clients of given sizes."""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

LEAST_ALPHA = 0.001

_SWEEPS, _CLOSE_ENOUGH = 2_000, 0.1  # samples, of a class
_LEAST_LOG = -600.0  # beside a client's largest: every class stays possible for every client


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
