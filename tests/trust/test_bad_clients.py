"""What clients that are broken or hostile can do to the paper's rule, and what stops them."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fednnnn_plugin as fp
from fednnnn_plugin.server import rules
from fednnnn_plugin.server.layout import Layout
from fednnnn_plugin.server.server import Server

FEDAVG, FEDNNNN = "PaperFedAvg", "FedNNNN"
#: The paper's of CIFAR-10, IID-B.
SETTINGS = {FEDAVG: {}, FEDNNNN: {"beta": 0.7, "gamma": 0.8}}
Vector = tuple[float, float]
#: Four clients that pull in opposite directions, as those of two classes do.
HONEST: list[Vector] = [(1.0, 0.0), (-1.0, 0.0), (1.0, 0.0), (-1.0, 0.0)]
FIFTH: Vector = (0.0, 1.0)


def path(
    rule: str, rounds: Sequence[Sequence[Vector]], clip: float | None = None
) -> Iterator[Vector]:
    """Yield where the served model is, from the origin on, in rounds of these updates."""
    start = {"w": torch.zeros(2, dtype=torch.float64)}
    server = Server(rules.RULES[rule], SETTINGS[rule], Layout(start, ["w"]))
    state = server.start(start)
    yield 0.0, 0.0
    for updates in rounds:
        served = server.layout.state_dict(state.served)
        acc = fp.UpdateAccumulator(served, ["w"], clip)
        for update in updates:
            acc.add({"w": served["w"] + torch.tensor(update, dtype=torch.float64)}, 1.0)
        state, _ = server.apply(state, acc.finish())
        x, y = state.served.vector.tolist()
        yield x, y


def displacement(*arguments: Any, **more: Any) -> list[float]:
    *_, last = path(*arguments, **more)
    return list(last)


def test_huge_update_is_repeated_by_momentum() -> None:
    """S = (0, H/5), N = H/5, E = (4 + H)/5: FedAvg moves by N, FedNNNN by β E.

    The rounds after it move by γ of it, γ² of it, …: by β/(1 - γ) = 3.5 times E in all.
    """
    attack = [*HONEST, (0.0, 1e6)]
    assert displacement(FEDAVG, [attack]) == pytest.approx([0.0, 2e5])
    assert displacement(FEDNNNN, [attack]) == pytest.approx([0.0, 0.7 * (4 + 1e6) / 5])
    calm = [[*HONEST, FIFTH]] * 60
    harm = displacement(FEDNNNN, [attack, *calm])[1] - displacement(FEDNNNN, [calm[0], *calm])[1]
    assert harm == pytest.approx(3.5 * (1e6 - 1) / 5, rel=1e-5)


def test_cancelling_updates_choose_the_step_length() -> None:
    """FedAvg does not see them: S = (0, 1/7), but E = (4 + 1 + 2H)/7 for the pair ± H."""
    updates = [*HONEST, FIFTH, (1e4, 0.0), (-1e4, 0.0)]
    assert displacement(FEDAVG, [updates]) == pytest.approx([0.0, 1 / 7])
    assert displacement(FEDNNNN, [updates]) == pytest.approx([0.0, 0.7 * (5 + 2e4) / 7])
    assert displacement(FEDNNNN, [updates], clip=1.0) == pytest.approx([0.0, 0.7])
    updates[-2:] = [(1e6, 0.0), (-1e6, 0.0)]  # N is below 10⁻⁶ E: near 0, and the model stays
    assert displacement(FEDNNNN, [updates]) == [0.0, 0.0]


def test_tiny_update_among_cancelling_ones_chooses_direction() -> None:
    """S = (0, ε/5) is all that is left, and is given the length β E: a norm limit cannot help."""
    updates = [*HONEST, (0.0, 1e-3)]
    assert displacement(FEDAVG, [updates]) == pytest.approx([0.0, 2e-4])
    for clip in (None, 1.0):
        assert displacement(FEDNNNN, [updates], clip) == pytest.approx([0.0, 0.7 * 4.001 / 5])


NUMBERS = st.floats(-1e150, 1e150) | st.floats(-2, 2) | st.sampled_from([0.0, 1e100, -1e100])
UPDATES = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=5)


@settings(max_examples=settings().max_examples // 2)
@given(rounds=st.lists(UPDATES, min_size=1, max_size=3), clip=st.floats(1e-3, 1e3))
def test_clipping_bounds_the_step(rounds: list[list[Vector]], clip: float) -> None:
    """N ≤ E ≤ c, so a round moves FedNNNN by β c and what momentum repeats, FedAvg by c."""
    for rule, bound in ((FEDAVG, clip), (FEDNNNN, 0.7 * clip / (1 - 0.8))):
        for before, after in pairwise(path(rule, rounds, clip)):
            assert math.dist(before, after) <= bound * (1 + 1e-6) + 1e-9
