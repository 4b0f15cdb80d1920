"""Which clients train in a round."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fednnnn_plugin.errors import UserError, shown
from fednnnn_plugin.seeds import isolated_generators, torch_generator
from fednnnn_plugin.user_code import call_code, user_code

SAMPLING = "train_args.client_sampling"

#: A user's ``function(round, num_clients, cohort_size, generator)``: it returns m different ones of
#: the clients 0 to K - 1, in any order. Rounds are counted from 1.
Sampler: TypeAlias = Callable[[int, int, int, torch.Generator], Iterable[int]]


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
        given = call_code(sampler, where, round_number, num_clients, cohort_size, generator)
        return sorted(_checked(given, where, num_clients, cohort_size))


def _checked(given: Any, where: str, num_clients: int, cohort_size: int) -> list[int]:
    """Return what a sampler gave as a list of ``int``; of what has no end, no more than tells."""
    listed = given.tolist() if isinstance(given, Tensor | np.ndarray) else given
    clients: list[Any] = []
    wrong = "" if isinstance(listed, Iterable) else shown(listed)
    if not wrong:
        first = islice(listed, cohort_size + 1)
        clients = [each.item() if isinstance(each, Tensor | np.generic) else each for each in first]
        wrong = _wrong(clients, num_clients, cohort_size)
    if wrong:
        raise UserError(
            f"{where}: {wrong}: must be {cohort_size} different clients, whole numbers of 0 to "
            f"{num_clients - 1}"
        )
    return clients


def _wrong(clients: list[Any], num_clients: int, cohort_size: int) -> str:
    """Say what is wrong with the clients of a cohort, if anything is."""
    seen: set[int] = set()
    for client in clients:
        if type(client) is not int or not 0 <= client < num_clients:
            return f"client {shown(client)}"
        if client in seen:
            return f"client {client} twice"
        seen.add(client)
    more = "more than " * (len(clients) > cohort_size)
    return "" if len(clients) == cohort_size else f"{more}{min(len(clients), cohort_size)} clients"
