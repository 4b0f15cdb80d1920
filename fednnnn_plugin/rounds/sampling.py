"""Which clients train in a round."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fednnnn_plugin.errors import UserError, shown
from fednnnn_plugin.seeds import isolated_generators, torch_generator
from fednnnn_plugin.user_code import user_code

SAMPLING, AVAILABILITY = "train_args.client_sampling", "train_args.client_availability"

#: A user's ``function(round, num_clients, cohort_size, generator)``: it returns m different ones of
#: the clients 0 to K - 1, in any order. Rounds are counted from 1.
Sampler: TypeAlias = Callable[[int, int, int, torch.Generator], Iterable[int]]


#: A user's ``function(round)``: the clients of 0 to K - 1 that are available in a round.
Available: TypeAlias = Callable[[int], Iterable[int]]


def draw_cohort(
    seed: int,
    round_number: int,
    num_clients: int,
    cohort_size: int,
    sampler: Sampler | None = None,
) -> list[int]:
    """Draw m of K clients, in increasing order: uniformly without replacement, or by a sampler.

    The generator is a CPU one of this purpose and round. What a sampler draws from the global
    generators follows from seed and round too, and they are restored.

    Raises:
        UserError: the sampler raised, or gave other than m different clients.
    """
    generator = torch_generator(seed, "cohort", round_number)
    if sampler is None:
        return sorted(torch.randperm(num_clients, generator=generator)[:cohort_size].tolist())

    where = f"{SAMPLING}: round {round_number}"
    with isolated_generators(seed, "sampler", round_number), user_code(where):
        given = sampler(round_number, num_clients, cohort_size, generator)
        return sorted(_checked(given, where, num_clients, cohort_size))


def size_weights(sizes: Sequence[int], cohort_size: int) -> list[float]:
    r"""Return the weights ``a_k`` of clients that :func:`draw_by_size` draws.

    Client k is in a cohort with the probability π_k. With the weights ``a_k = n_k / π_k`` the
    expected sum is that of all clients by their samples (Horvitz, Thompson 1952):

    .. math::
        \operatorname{E} \sum_{k ∈ \text{cohort}} a_k Δ_k = \sum_k π_k \frac{n_k}{π_k} Δ_k
        = \sum_k n_k Δ_k

    The average divides by the weights of the cohort. For it to be unbiased as well, their sum must
    be the same in each cohort, which is so where π_k is proportional to n_k, or 1. Of m places let
    c be taken by the clients C that are always drawn, since π_k would be above 1, and let n' be the
    samples of the others:

    .. math:: π_k = (m - c) n_k / n', \quad a_k = n' / (m - c)

    Each cohort's weights then add up to :math:`\sum_{k ∈ C} n_k + n' = n`, so that
    :math:`\operatorname{E} S = \sum_k (n_k / n) Δ_k`. Without such large clients the weights are
    equal.
    """
    always, left, places = _always_drawn(sizes, cohort_size)
    equal = left / places if places else 0.0
    return [float(size) if k in always else equal for k, size in enumerate(sizes)]


def draw_by_size(seed: int, round_number: int, sizes: Sequence[int], cohort_size: int) -> list[int]:
    """Draw m clients by their sizes, in increasing order: systematically (Madow 1949).

    Clients that are always drawn are left out. The others lie on a line in an order drawn for the
    round, client k on (m - c) n_k whole numbers of n'; each n'-th number, from one that is drawn
    uniformly, marks a client. No client has more than n' numbers, so that none is drawn twice, and
    its probability is exactly that of :func:`size_weights`.
    """
    always, left, places = _always_drawn(sizes, cohort_size)
    generator = torch_generator(seed, "cohort", round_number)
    others = [k for k, size in enumerate(sizes) if k not in always and size]
    order = torch.randperm(len(others), generator=generator).tolist()
    first = int(torch.randint(max(left, 1), (1,), generator=generator))
    return sorted([*always, *marked([others[k] for k in order], sizes, places, first)])


def marked(clients: Sequence[int], sizes: Sequence[int], places: int, first: int) -> list[int]:
    """Return the clients on whose numbers ``first + i n'`` lie, i from 0 to places - 1."""
    left, end, found = sum(sizes[k] for k in clients), 0, list[int]()
    for client in clients:
        end += places * sizes[client]
        if len(found) < places and first + len(found) * left < end:
            found.append(client)
    return found


def _always_drawn(sizes: Sequence[int], cohort_size: int) -> tuple[set[int], int, int]:
    """Return the clients of probability 1, the others' samples, and the places left for these."""
    always, left, places = set[int](), sum(sizes), min(cohort_size, sum(map(bool, sizes)))
    for client in sorted(range(len(sizes)), key=lambda k: -sizes[k]):
        if not places or places * sizes[client] < left:
            break
        always.add(client)
        left, places = left - sizes[client], places - 1
    return always, left, places


def in_turn(round_number: int, clients: Sequence[int], total: int, cohort_size: int) -> list[int]:
    """Return m of the clients by turns: those that follow client ``(r - 1) m`` of K, cyclically."""
    start = (round_number - 1) * cohort_size % total
    return sorted(sorted(clients, key=lambda k: (k - start) % total)[:cohort_size])


def available_clients(available: Available, round_number: int, num_clients: int) -> list[int]:
    """Return the clients that a user's function says are available in a round.

    Raises:
        UserError: it raised, or gave other than different clients of 0 to K - 1.
    """
    where = f"{AVAILABILITY}: round {round_number}"
    with isolated_generators(0, "availability", round_number), user_code(where):
        return sorted(_checked(available(round_number), where, num_clients, None))


def _checked(given: Any, where: str, num_clients: int, cohort_size: int | None) -> list[int]:
    """Return the clients that a user's function gave, as ``int``: m of them, or any number.

    An iterable without an end is read only as far as needed.
    """
    many = "" if cohort_size is None else f"{cohort_size} "
    must = f"must be {many}different clients, whole numbers of 0 to {num_clients - 1}"
    listed = given.tolist() if isinstance(given, Tensor | np.ndarray) else given
    if not isinstance(listed, Iterable):
        raise UserError(where, shown(listed), must)
    most = num_clients if cohort_size is None else cohort_size
    clients = dict[int, None]()
    for each in islice(listed, most + 1):
        client = each.item() if isinstance(each, Tensor | np.generic) else each
        if type(client) is not int or not 0 <= client < num_clients:
            raise UserError(where, f"client {shown(client)}", must)
        if client in clients:
            raise UserError(where, f"client {client} twice", must)
        clients[client] = None
    if cohort_size not in (None, len(clients)):
        more = "more than " * (len(clients) > most)
        raise UserError(where, f"{more}{min(len(clients), most)} clients", must)
    return [*clients]
