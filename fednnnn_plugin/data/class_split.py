"""Splits in which every client holds exactly so many classes: who holds which, and how much.

Such a split is a table of clients by classes with given row sums (client sizes) and column sums
(class sizes) and exactly ``classes_per_client`` positive entries a row. Two steps find one:

1. *Draw* which classes each client holds: largest client first, each taking the classes with the
   most samples left, blurred by noise so that the seed decides.
2. *Settle* the amounts: start from equal parts and move the surplus of overdrawn classes along
   chains of clients to the underdrawn ones. Seen from the classes this is a maximum flow
   (Edmonds & Karp 1972) in integers, so it finds the amounts whenever the drawn holdings admit
   any. Raising the least part that a client may hold, as far as it goes, makes them even.

A draw that cannot be settled is drawn again. With one class a client there is nothing to settle:
each class is the sum of some clients' sizes, and a draw chooses which.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fednnnn_plugin.data.client_sizes import Ints

Bools = NDArray[np.bool_]

_EVEN_ENOUGH = 80  # per cent of an equal part, to stop drawing: 40 % of a client of two classes
_ACCEPTABLE = 70  # for which balanced clients are drawn on
_CAREFUL_DRAWS = 20
_WILD_DRAWS = 300
_LARGE_TABLE = 6_000  # cells; a draw of a larger one takes so long that fewer must do


def class_shares(
    class_sizes: Ints, client_sizes: Ints, classes_per_client: int, rng: np.random.Generator
) -> Ints | None:
    """How many samples of each class every client holds, [num_clients, num_classes] int64.

    The sizes are positive and of the same total. It is the most even table of the draws, or None
    where no draw could be settled.
    """
    if classes_per_client == 1:
        return _single_class_shares(class_sizes, client_sizes, rng)
    best, best_percent = None, -1
    acceptable = _ACCEPTABLE if np.ptp(client_sizes) <= 1 else 0
    for draw, noise in enumerate(_noise_schedule(len(class_sizes) * len(client_sizes), rng)):
        if draw >= _CAREFUL_DRAWS and best_percent >= acceptable:
            break
        held = _draw_holdings(class_sizes, client_sizes, classes_per_client, noise, rng)
        if held is None:
            continue
        percent, shares = _settle_evenly(held, class_sizes, client_sizes, best_percent + 1)
        if shares is not None:
            best, best_percent = shares, percent
        if best_percent >= _EVEN_ENOUGH:
            break
    return best


def _noise_schedule(cells: int, rng: np.random.Generator) -> Iterator[float]:
    """Noise of each draw, in equal parts: ever less, then (few clients, many classes) any."""
    yield from np.linspace(1.0, 0.0, _CAREFUL_DRAWS)
    fewer = (_CAREFUL_DRAWS + _WILD_DRAWS) * _LARGE_TABLE // cells // 4 - _CAREFUL_DRAWS
    for _ in range(_WILD_DRAWS if cells <= _LARGE_TABLE else fewer):
        yield 10.0 * rng.random()


def _draw_holdings(
    class_sizes: Ints, client_sizes: Ints, c: int, noise: float, rng: np.random.Generator
) -> Bools | None:
    """Which c classes each client holds, [num_clients, num_classes], or None in a dead end."""
    num_clients, num_classes = len(client_sizes), len(class_sizes)
    left = class_sizes.copy()
    holders_left = np.minimum(class_sizes, num_clients)  # a class of 3 samples has 3 at most
    held = np.zeros((num_clients, num_classes), dtype=np.bool_)
    shuffled = rng.permutation(num_clients)
    order = shuffled[np.argsort(-client_sizes[shuffled], kind="stable")]
    for clients_left, client in zip(range(num_clients, 0, -1), order, strict=True):
        size = client_sizes[client]
        blur = noise * size / c
        closing = _classes_to_close(left, clients_left, c, blur, rng)
        appeal = left + blur * rng.random(num_classes)
        appeal[holders_left == 0] = -np.inf
        appeal[closing] = -np.inf
        others = np.argsort(-appeal, kind="stable")[: c - len(closing)]
        if np.isneginf(appeal[others]).any():
            return None
        size = max(size - left[closing].sum(), 0)
        left[closing] = 0
        available = np.maximum(left[others], 0)
        if available.sum() < size or not available.any():
            available = np.ones_like(available)  # overdrawn: settling will put it right
        left[others] -= apportion(size, available)
        held[client, closing] = held[client, others] = True
        holders_left[others] -= 1
    return held


def _classes_to_close(
    left: Ints, clients_left: int, c: int, blur: float, rng: np.random.Generator
) -> Ints:
    """Classes that this client must finish, the smallest first (blurred).

    The other ``m`` clients can hold only ``(c - 1) m + 1`` open classes between them if they are
    to share classes with one another, as in general they must for the sums to come out.
    """
    unfinished = np.flatnonzero(left > 0)
    excess = len(unfinished) - ((c - 1) * (clients_left - 1) + 1)
    smallest = np.argsort(left[unfinished] + blur * rng.random(len(unfinished)), kind="stable")
    return unfinished[smallest[: min(max(excess, 0), c - 1)]]


def _settle_evenly(
    held: Bools, class_sizes: Ints, client_sizes: Ints, from_percent: int
) -> tuple[int, Ints | None]:
    """The amounts whose least part is the largest percentage of an equal part, by bisection."""
    classes_per_client = int(held[0].sum())
    whole, larger = np.divmod(client_sizes, classes_per_client)
    is_larger = held.cumsum(axis=1) <= larger[:, None]
    equal = np.where(held, whole[:, None] + is_larger, 0)

    def settle(percent: int) -> Ints | None:
        least = np.maximum(percent * client_sizes // (100 * classes_per_client), 1)
        return _settle(held, class_sizes, equal.copy(), least)

    low, best = from_percent, settle(from_percent)
    high = 100 if best is not None else low
    while low < high:
        middle = (low + high + 1) // 2
        if (shares := settle(middle)) is None:
            high = middle - 1
        else:
            low, best = middle, shares
    return low, best


def _settle(held: Bools, class_sizes: Ints, shares: Ints, least: Ints) -> Ints | None:
    """Change amounts to such with the classes' sums, each at least ``least[client]``, if any."""
    if (shares < least[:, None])[held].any():
        return None
    holders = held.astype(np.int64)

    def passable(classes: list[int]) -> Ints:  # samples, from each of these to every class
        slack: Ints = np.where(held[:, classes], shares[:, classes] - least[:, None], 0)
        return slack.T @ holders

    room = passable(list(range(len(class_sizes))))
    while True:
        surplus = shares.sum(axis=0) - class_sizes
        if not surplus.any():
            return shares
        if (chain := _shortest_chain(room, surplus)) is None:
            return None
        links = list(pairwise(chain))
        amount = min(surplus[chain[0]], -surplus[chain[-1]], *(room[i, j] for i, j in links))
        for i, j in links:
            moved = apportion(amount, np.where(held[:, j], shares[:, i] - least, 0) * held[:, i])
            shares[:, i] -= moved
            shares[:, j] += moved
        room[chain] = passable(chain)  # all else is as it was: with many classes most of the time


def _shortest_chain(room: Ints, surplus: Ints) -> list[int] | None:
    """Classes along a shortest way with room from one with a surplus to one with a deficit."""
    came_from = {int(i): -1 for i in np.flatnonzero(surplus > 0)}
    queue = list(came_from)
    for i in queue:
        if surplus[i] < 0:
            chain = [i]
            while came_from[chain[0]] >= 0:
                chain.insert(0, came_from[chain[0]])
            return chain
        for j in map(int, np.flatnonzero(room[i])):
            if j not in came_from:
                came_from[j] = i
                queue.append(j)
    return None


def places_of_classes(labels: NDArray[np.integer[Any]], num_classes: int) -> list[Ints]:
    """Return the positions of each class from 0 on, ascending; one sort, of any number of them."""
    counts = np.bincount(labels, minlength=num_classes)
    return np.split(np.argsort(labels, kind="stable"), counts[:-1].cumsum())


def apportion(amount: int, weights: Ints | Bools) -> Ints:
    """Whole numbers in proportion to the weights, by largest remainder, that sum to amount."""
    parts, remainders = np.divmod(amount * weights.astype(np.int64), weights.sum())
    parts[np.argsort(-remainders, kind="stable")[: amount - parts.sum()]] += 1
    return parts


def _single_class_shares(
    class_sizes: Ints, client_sizes: Ints, rng: np.random.Generator
) -> Ints | None:
    """One class a client: T samples make e clients of q or q + 1 if q e <= T <= (q + 1) e.

    Clients of other sizes are drawn.
    """
    if len(class_sizes) == 1:
        return client_sizes[:, None].copy()
    q = int(client_sizes.min())
    if client_sizes.max() > q + 1:
        schedule = _noise_schedule(len(class_sizes) * len(client_sizes), rng)
        draws = (_draw_single_classes(class_sizes, client_sizes, x, rng) for x in schedule)
        return next((shares for shares in draws if shares is not None), None)
    fewest, most = -(-class_sizes // (q + 1)), class_sizes // q
    spare = len(client_sizes) - int(fewest.sum())
    if (fewest > most).any() or not 0 <= spare <= int((most - fewest).sum()):
        return None
    holders = fewest.copy()
    for j in rng.permutation(len(class_sizes)):
        extra = min(spare, int(most[j] - fewest[j]))
        holders[j] += extra
        spare -= extra
    larger = class_sizes - q * holders  # clients of q + 1 samples in each class
    classes = np.arange(len(class_sizes))
    shares = np.zeros((len(client_sizes), len(class_sizes)), dtype=np.int64)
    for size, counts in ((q + 1, larger), (q, holders - larger)):
        clients = rng.permutation(np.flatnonzero(client_sizes == size))
        shares[clients, np.repeat(classes, counts)] = size
    return shares


def _draw_single_classes(
    class_sizes: Ints, client_sizes: Ints, noise: float, rng: np.random.Generator
) -> Ints | None:
    """One class a client: each class in turn takes clients that sum to it, or None in a dead end.

    Which sums the clients of lower appeal can make is a subset sum (Bellman 1957), where bit t of
    an integer stands for the sum t. Where a client may be taken or left, a coin decides.
    """
    shares = np.zeros((len(client_sizes), len(class_sizes)), dtype=np.int64)
    appeal = client_sizes + noise * client_sizes.mean() * rng.random(len(client_sizes))
    left = np.argsort(appeal, kind="stable").tolist()
    sizes = client_sizes.tolist()
    for j in rng.permutation(len(class_sizes)):
        missing = int(class_sizes[j])
        sums, representable = [1], (2 << missing) - 1
        for client in left:
            sums.append((sums[-1] | sums[-1] << sizes[client]) & representable)
        if not sums.pop() >> missing:
            return None
        for client in left[::-1]:
            size, of_lower = sizes[client], sums.pop()
            possible = size <= missing and of_lower >> (missing - size) & 1
            if possible and (not of_lower >> missing & 1 or rng.random() < 0.5):
                shares[client, j] = size
                missing -= size
                left.remove(client)
    return shares
