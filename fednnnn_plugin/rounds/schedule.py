"""The schedule of a run: which clients train in a round, with which weights; what is tested."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from fednnnn_plugin.client.local_sgd import Rates
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.rounds.sampling import (
    AVAILABILITY,
    SAMPLING,
    Available,
    Sampler,
    available_clients,
    draw_by_size,
    draw_cohort,
    in_turn,
    size_weights,
)
from fednnnn_plugin.rounds.stopping import Stop


@dataclass(frozen=True)
class Schedule:
    """What a federation does in each round."""

    rounds: int  # the number of the last one
    client_sizes: tuple[int, ...]  # samples of each of the K clients
    cohort_size: int  # m, clients a round
    seed: int  # of the cohorts, and of what a user's rule draws
    weighting: Literal["uniform", "samples"] = "uniform"  # α_k = 1/m, or n_k/n
    sampling: str = "uniform"  # of the cohorts; or by_size, round_robin
    sampler: Sampler | None = None  # a custom one, instead of it
    available: Available | None = None  # the clients of a round; None is all
    test_every: int = 1  # rounds with (round - 1) % test_every = 0 are tested, and the last
    test_served: bool = False  # the served model as well
    per_client: bool | Literal["end"] = False  # each tested round, or the last, by client as well
    max_client_failures: int = 0  # of a round, before the run ends
    max_client_norm: float | None = None  # longer updates are clipped to it
    least_groups: int = 1  # of a round, where it has as many clients
    stop: Stop | None = None  # what may end the run before its last round
    equal_work: bool = False  # whether all clients take as many steps
    rates: Rates | None = None  # the clients' learning rates, where they change

    def draw(self, number: int) -> list[int]:
        """Return the clients of a round; those without data, in some of FedML's, are in none."""
        total, m = len(self.client_sizes), self.cohort_size
        there: Iterable[int] = range(total)
        if self.sampler is not None:
            there = draw_cohort(self.seed, number, total, m, self.sampler)
        elif self.available is not None:
            there = available_clients(self.available, number, total)
        with_data = [client for client in there if self.client_sizes[client]]
        if not with_data:
            where = AVAILABILITY if self.sampler is None else SAMPLING
            raise UserError(where, f"round {number}: no client with data")
        if self.sampler is not None:
            return with_data
        if self.sampling == "round_robin":
            return in_turn(number, with_data, total, m)
        if self.sampling == "by_size":
            return draw_by_size(self.seed, number, self.client_sizes, m)
        places = draw_cohort(self.seed, number, len(with_data), min(m, len(with_data)))
        return [with_data[place] for place in places]

    def weight(self, client: int) -> float:
        """Return ``a_k``, of which ``α_k`` is the share in the round."""
        if self.sampling == "by_size":
            return self._size_weights[client]
        return 1.0 if self.weighting == "uniform" else float(self.client_sizes[client])

    @cached_property
    def _size_weights(self) -> list[float]:
        return size_weights(self.client_sizes, self.cohort_size)

    def tests(self, number: int) -> bool:
        """Tell whether a round is tested."""
        return (number - 1) % self.test_every == 0 or number == self.rounds

    def tests_clients(self, number: int) -> bool:
        """Tell whether a round is tested by client."""
        at_last = self.per_client == "end" and number == self.rounds
        return at_last or (self.per_client is True and self.tests(number))
