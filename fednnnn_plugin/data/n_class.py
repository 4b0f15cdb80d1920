"""Clients of exactly so many classes: the split, or the limit that stands in its way."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fednnnn_plugin.data.class_split import EVEN_ENOUGH, class_shares
from fednnnn_plugin.data.client_sizes import client_sizes
from fednnnn_plugin.errors import UserError

Ints = NDArray[np.int64]

# A law steeper than rank^-64 leaves the least size to every client but the first.
_STEEPEST = 64.0


@dataclass(frozen=True)
class NClassSplit:
    """K clients of exactly c classes each, of balanced or (given an exponent) falling sizes.

    ``class_sizes`` is [num_classes] int64, all positive.
    """

    class_sizes: Ints
    num_clients: int
    classes_per_client: int
    power_law_exponent: float | None
    min_samples: int
    seed: int

    def shares(self) -> Ints:
        """Images of each class that every client holds, [num_clients, num_classes] int64.

        Raises:
            UserError: there is no such split, or none was found; names the limit and, where the
                exponent is in the way, the largest that is possible.
        """
        self._check_counts()
        shares = self._find(self.power_law_exponent)
        if shares is None:
            raise UserError(self._why_not())
        return shares

    def _find(self, exponent: float | None, even_enough: int = EVEN_ENOUGH) -> Ints | None:
        sizes = self._client_sizes(exponent)
        if self._overfull(sizes):
            return None
        rng = np.random.default_rng(self.seed)
        return class_shares(self.class_sizes, sizes, self.classes_per_client, rng, even_enough)

    def _client_sizes(self, exponent: float | None) -> Ints:
        least = max(self.min_samples, self.classes_per_client)
        return client_sizes(int(self.class_sizes.sum()), self.num_clients, exponent, least)

    def _overfull(self, sizes: Ints) -> int:
        """The least q for which the q largest clients exceed the c·q largest classes, else 0."""
        by_size = np.sort(self.class_sizes)[::-1].cumsum()
        held = np.arange(1, len(sizes) + 1) * self.classes_per_client
        capacity = by_size[np.minimum(held, len(by_size)) - 1]
        excess = np.flatnonzero(sizes.cumsum() > capacity)
        return int(excess[0]) + 1 if len(excess) else 0

    def _check_counts(self) -> None:
        clients, c = self.num_clients, self.classes_per_client
        num_classes = len(self.class_sizes)
        if c > num_classes:
            raise UserError(f"classes_per_client: {c}: the labels have only {num_classes} classes")
        if clients * c < num_classes:
            raise UserError(
                f"num_clients: {clients}: with classes_per_client={c} they cannot hold all "
                f"{num_classes} classes; at least {math.ceil(num_classes / c)} clients are needed"
            )
        if self._pairs(clients) < clients * c:
            most = max(k for k in range(clients) if self._pairs(k) >= k * c)
            raise UserError(
                f"num_clients: {clients}: the classes have too few images for "
                f"classes_per_client={c}; at most {most} clients are possible"
            )

    def _pairs(self, num_clients: int) -> int:
        """Most (client, class) pairs: a class of 3 images is held by 3 clients at most."""
        return int(np.minimum(self.class_sizes, num_clients).sum())

    def _why_not(self) -> str:
        clients, c, exponent = self.num_clients, self.classes_per_client, self.power_law_exponent
        if exponent is None:
            return (
                f"num_clients: {clients}: found no way to divide these {len(self.class_sizes)} "
                f"classes into balanced clients of exactly {c}; try more clients or classes"
            )
        sizes = self._client_sizes(exponent)
        if q := self._overfull(sizes):
            who = "the largest client" if q == 1 else f"each of the {q} largest clients"
            largest_classes = np.sort(self.class_sizes)[::-1][: c * q].sum()
            reason = (
                f"{who} would need more than classes_per_client={c} classes "
                f"({sizes[:q].sum()} images, where the largest {c * q} together have "
                f"{largest_classes})"
            )
        else:
            reason = f"found no way to give each client exactly classes_per_client={c} classes"
        largest = self._largest_exponent(min(exponent, _STEEPEST))
        return (
            f"power_law_exponent: {exponent:g}: {reason}; the largest exponent that these labels "
            f"allow with num_clients={clients} is {largest}"
        )

    def _largest_exponent(self, below: float) -> str:
        """The largest possible exponent in steps of 0.001, by bisection."""
        low, high = -1, math.floor(1000 * below)
        while low < high:
            middle = (low + high + 1) // 2
            if self._find(middle / 1000, even_enough=0) is None:
                high = middle - 1
            else:
                low = middle
        return f"{low / 1000:.3f}" if low >= 0 else "none, not even 0"
