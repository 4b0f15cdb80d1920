"""Which clients train in a round: uniform draws, a user's sampler; in which order, and where."""

from collections import Counter
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

import fednnnn_plugin as fp
from fednnnn_plugin.assembly.availability import AvailabilityFile
from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.rounds.batches import TensorBatches
from fednnnn_plugin.rounds.groups import assign
from fednnnn_plugin.rounds.sampling import (
    AVAILABILITY,
    _always_drawn,
    draw_by_size,
    draw_cohort,
    in_turn,
    marked,
    size_weights,
)
from fednnnn_plugin.rounds.schedule import Schedule
from fednnnn_plugin.seeds import generators_state, torch_generator

from ..tiny import Content, Start, draw, read_records

KEY = "train_args.client_sampling"


def test_cohorts_are_the_same_on_every_platform() -> None:
    assert draw_cohort(0, 1, 10, 4) == [1, 5, 6, 8]
    assert draw_cohort(0, 1, 100, 7) == [6, 8, 25, 48, 51, 69, 88]


def test_cohorts_are_drawn_as_often() -> None:
    """Over the rounds of one seed, and over the seeds of one round: all 20 threes of 6 clients."""
    for drawn in (lambda n: draw_cohort(0, n, 6, 3), lambda n: draw_cohort(n, 1, 6, 3)):
        seen = Counter(tuple(drawn(n)) for n in range(1, 2001))
        assert len(seen) == 20
        assert chisquare([*seen.values()]).pvalue > 0.001


def test_sampler_draws_follow_from_seed_and_round() -> None:
    """Its draws from its generator and from the global ones, which are restored."""

    def drawn(number: int, clients: int, size: int, generator: torch.Generator) -> Any:
        assert torch.equal(generator.get_state(), torch_generator(2, "cohort", number).get_state())
        return (int(1e6 * draw()) - torch.arange(size)) % clients

    before = generators_state()
    cohorts = [draw_cohort(2, number, 50, 5, drawn) for number in (1, 2, 3, 1)]
    assert generators_state() == before
    assert len({str(cohort) for cohort in cohorts}) == 3
    assert cohorts[0] == cohorts[3] == sorted(cohorts[0])


def test_sampler_may_return_any_form() -> None:
    array, tensor = np.array([4, 2, 0], np.uint8), torch.tensor([2, 4, 0], dtype=torch.int32)
    mixed = [np.int64(0), torch.tensor(2), 4]
    for drawn in ({4, 0, 2}, range(0, 6, 2), array, tensor, mixed, (k for k in (0, 4, 2))):
        assert draw_cohort(0, 1, 6, 3, lambda *_, drawn=drawn: drawn) == [0, 2, 4]


@pytest.mark.parametrize(
    ("drawn", "told"),
    [
        ([0, 1], "2 clients"),
        (count(), "more than 3 clients"),
        ([0, 1, 1], "client 1 twice"),
        ([0, 1, 6], "client 6"),
        ([0, True, 2], "client true"),
        (None, "null"),
    ],
)
def test_sampler_must_return_different_clients(drawn: Any, told: str) -> None:
    with pytest.raises(UserError, match=f"^{KEY}: round 4: {told}: must be 3 different"):
        draw_cohort(0, 4, 6, 3, lambda *_: drawn)


def test_sampler_that_fails_ends_the_run(start: Start) -> None:
    with pytest.raises(fp.RunError, match=rf"^{KEY}: round 3: raised ZeroDiv") as ended:
        start("run", client_sampling=lambda n, *_: [0, 1, 6 // (3 - n)], comm_round=3)
    assert isinstance(ended.value.__cause__, ZeroDivisionError)
    assert fp.read_runs("run")["round"].tolist() == [1, 2]


SIZES = [7, 0, 12, 30, 1, 9, 16]


@pytest.mark.parametrize("cohort", [1, 3, 6])
def test_average_of_clients_drawn_by_size_is_unbiased(cohort: int) -> None:
    """Over all first numbers of one order, and so of each: exactly the mean of all samples.

    Of 75 samples and three places client 3 has one (3 · 30 > 75); of the other two places client
    k has 2 n_k of 45 numbers, and each weighs 45/2.
    """
    weights = size_weights(SIZES, cohort)
    for weighting in ("uniform", "samples"):  # which is ignored
        schedule = Schedule(1, (*SIZES,), cohort, 0, weighting, "by_size")
        assert [*map(schedule.weight, range(len(SIZES)))] == weights
    if cohort == 3:
        assert weights == [22.5, 22.5, 22.5, 30.0, 22.5, 22.5, 22.5]
    always, left, places = _always_drawn(SIZES, cohort)
    others = [client for client in (6, 0, 5, 2, 4, 3) if client not in always]
    mean = Counter[int]()
    for first in range(max(left, 1)):
        drawn = [*always, *marked(others, SIZES, places, first)]
        assert len(drawn) == len({*drawn}) == cohort
        total = sum(weights[client] for client in drawn)
        assert total == pytest.approx(sum(SIZES))
        for client in drawn:
            mean[client] += weights[client] / total / max(left, 1)
    shares = {client: size / sum(SIZES) for client, size in enumerate(SIZES) if size}
    assert dict(mean) == pytest.approx(shares)


def test_draws_by_size_are_as_often_as_they_should() -> None:
    drawn = [draw_by_size(0, number, SIZES, 3) for number in range(1, 4001)]
    assert all(cohort == sorted({*cohort}) and len(cohort) == 3 for cohort in drawn)
    counts = Counter(client for cohort in drawn for client in cohort)
    assert (counts[3], counts[1]) == (4000, 0)
    for client in (0, 2, 4, 5, 6):
        assert counts[client] / 4000 == pytest.approx(2 * SIZES[client] / 45, abs=0.03)
    assert len({tuple(cohort) for cohort in drawn}) > 9  # not the same neighbours


def test_turns_by_hand() -> None:
    """Of 7 clients 3 a round; a client that is missing is passed over."""
    everyone = range(7)
    turns = [in_turn(number, everyone, 7, 3) for number in range(1, 5)]
    assert turns == [[0, 1, 2], [3, 4, 5], [0, 1, 6], [2, 3, 4]]
    assert in_turn(2, [0, 1, 4, 6], 7, 3) == [0, 4, 6]


def cohorts(folder: str) -> list[list[int]]:
    records = read_records(Path(folder))
    return [[one["client"] for one in record["by_client"]] for record in records]


def test_available_clients_of_a_file_and_a_function(start: Start, content: Content) -> None:
    """Clients 3 and 5 in rounds 1 and 2, then 5, 8, 11 and 12: of these two are drawn."""
    lines = ["\ufeffclient,first_round,last_round", "3,1,2", "", " ,,", "5,1,9", "8,3,4", "11,3,3"]
    lines += ["12,3,3"]
    Path("there.csv").write_text("\n".join(lines))
    with Path("own.py").open("a") as file:
        file.write("\n\ndef there(number):\n    return {3: {12, 8, 5, 11}}.get(number, (5, 3))\n")
    given = {"comm_round": 3, "client_num_per_round": 2}
    start("file", client_availability="there.csv", **given)
    start("named", client_availability="own:there", allow_code=True, **given | {"comm_round": 2})
    named = {"client_availability": "own:there", "allow_code": True, "resume": True}
    start("named", worker_num=2, **named, **given)
    assert content(Path("file")) == content(Path("named"))
    *first, last = cohorts("file")
    assert first == [[3, 5], [3, 5]]
    assert {*last} < {5, 8, 11, 12}
    start("turns", client_availability=Path("there.csv"), client_sampling="round_robin", **given)
    assert cohorts("turns") == [[3, 5], [3, 5], [5, 8]]
    Path("there.csv").write_text("\n".join([*lines, "9,3,3"]))
    with pytest.raises(UserError, match="resume=True: availability "):
        start("file", client_availability="there.csv", resume=True, **given)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["client,first,last"], "line 1: must be client,first_round,last_round"),
        (["client,first_round,last_round", "20,1,2"], "line 2: must be a client of 0 to 19"),
        (["client,first_round,last_round", f"2,1,{'9' * 5000}"], "line 2: must be a client"),
        (["client,first_round,last_round", "2,1,1"], "round 2: no client is available"),
        (None, "cannot be read"),
    ],
)
def test_file_of_available_clients_with_a_mistake(start: Start, lines: Any, said: str) -> None:
    if lines:
        Path("there.csv").write_text("\n".join(lines))
    with pytest.raises(UserError, match=rf"^{AVAILABILITY}: \S*there.csv: {said}"):
        start("run", client_availability="there.csv")


def test_first_round_without_a_client_is_named(tmp_path: Path) -> None:
    """Lines in any order, one within another; 20,000 rounds in one pass."""
    head, path = "client,first_round,last_round\n", tmp_path / "there.csv"
    path.write_text(f"{head}2,6,9\n3,2,2\n4,1,4\n1,1,2\n")
    assert AvailabilityFile(str(path), 5, 4)(2) == [1, 3, 4]
    with pytest.raises(UserError, match=r": round 5: no client is available: must cover"):
        AvailabilityFile(str(path), 5, 9)
    path.write_text(head + "".join(f"0,{number},{number}\n" for number in range(20_000, 0, -1)))
    with pytest.raises(UserError, match=r": round 20001: no client is available: "):
        AvailabilityFile(str(path), 1, 20_001)


def test_samplers_by_name_in_runs(start: Start) -> None:
    start("turns", client_sampling="round_robin", client_num_per_round=8, comm_round=3)
    assert cohorts("turns") == [[*range(8)], [*range(8, 16)], [0, 1, 2, 3, 16, 17, 18, 19]]
    with pytest.raises(UserError, match=f"{AVAILABILITY}: .*must be uniform or round_robin"):
        start("no", client_availability=lambda number: [1], client_sampling="by_size")
    with pytest.raises(UserError, match=f"^{AVAILABILITY}: round 1: client 20: must be"):
        start("no", client_availability=lambda number: [1, 20])
    with pytest.raises(UserError, match=f"^{AVAILABILITY}: round 1: no client with data"):
        start("no", client_availability=lambda number: [])


def test_shuffles_differ_by_seed_round_client_and_epoch(data: FederatedData) -> None:
    """Each is a permutation of the client's 30 images."""
    held = data.client_indices[3]
    twins = replace(data, client_indices=(held, held))
    drawn: list[list[int]] = []
    for seed, client, number in ((0, 0, 1), (0, 1, 1), (0, 0, 2), (1, 0, 1)):
        batches = TensorBatches(twins, LocalSGD(2, 8, 0.1), torch.device("cpu"), seed=seed)
        drawn += [order.tolist() for order in batches.orders(client, number)]
    assert len({str(order) for order in drawn}) == 8
    assert all(sorted(order) == sorted(held.tolist()) for order in drawn)


def test_dealing_worked_by_hand() -> None:
    """8 → 0, 7 → 1, 5 → 1, 4 → 0, 3 → 0 or 1 (12 each): the first."""
    groups = [(10,), (11,), (12,), (13,), (14,)]
    assert assign(groups, [3, 8, 5, 7, 4], 2) == [[(11,), (14,), (10,)], [(13,), (12,)]]
    assert assign(groups, [3, 8, 5, 7, 8], 1) == [[(11,), (14,), (13,), (12,), (10,)]]


class Kept(list[list[int]]):
    """A sampler that keeps what it draws: it is empty at first."""

    def __call__(self, *_: object) -> list[int]:
        self.append([1, 2])
        return self[-1]


def test_clients_without_data_are_in_no_round() -> None:
    schedule = Schedule(9, (7, 0, 12), 2, 0)
    for given in ({}, {"sampling": "round_robin"}, {"available": lambda _: [0, 1, 2]}):
        assert all(replace(schedule, **given).draw(number) == [0, 2] for number in range(1, 10))
    assert replace(schedule, sampler=lambda *_: [1, 2]).draw(1) == [2]
    assert replace(schedule, sampler=Kept()).draw(1) == [2]
    with pytest.raises(UserError, match=f"^{KEY}: round 1: no client with data"):
        replace(schedule, cohort_size=1, sampler=lambda *_: [1]).draw(1)
