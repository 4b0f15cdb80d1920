"""How many samples each client holds: balanced, or falling as a power of the client's rank."""

import numpy as np
from numpy.typing import NDArray

from fednnnn_plugin.errors import UserError

Ints = NDArray[np.int64]


def client_sizes(
    num_samples: int, num_clients: int, power_law_exponent: float | None, min_samples: int
) -> Ints:
    """Samples of each client, [num_clients] int64, largest first, adding up to ``num_samples``.

    Without an exponent they are balanced, whatever ``min_samples``.
    """
    if power_law_exponent is None:
        size, larger = divmod(num_samples, num_clients)
        return size + (np.arange(num_clients) < larger).astype(np.int64)
    check_least(num_samples, num_clients, min_samples)
    return _power_law(num_samples, num_clients, power_law_exponent, min_samples)


def check_least(num_samples: int, num_clients: int, min_samples: int) -> None:
    """Refuse more samples for every client than there are."""
    if num_clients * min_samples > num_samples:
        raise UserError(
            "min_samples",
            f"{min_samples}: {num_clients} clients would need {num_clients * min_samples} "
            f"samples, and there are {num_samples}",
            f"at most {num_samples // num_clients} is possible with so many clients",
        )


def _power_law(num_samples: int, num_clients: int, exponent: float, min_samples: int) -> Ints:
    """``n_k ∝ rank^(-exponent)``, rounded by largest remainder, where that is ``min_samples``."""
    weights = np.arange(1, num_clients + 1, dtype=np.float64) ** -exponent
    above = num_clients  # ranks 1..above follow the law
    while True:
        scale = (num_samples - (num_clients - above) * min_samples) / weights[:above].sum()
        if above == 1 or scale * weights[above - 1] >= min_samples:
            break
        above -= 1
    quotas = np.full(num_clients, float(min_samples))
    # Rounded, since the last bits of a power differ between platforms and the sizes must not.
    quotas[:above] = (scale * weights[:above]).round(6)
    sizes = np.floor(quotas).astype(np.int64)
    by_remainder = np.argsort(sizes - quotas, kind="stable")
    sizes[by_remainder[: num_samples - int(sizes.sum())]] += 1
    return sizes
