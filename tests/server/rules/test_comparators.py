"""FedExP, FedAdam and FedYogi: their equations by hand, then what holds for any updates."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import Parameter

from fednnnn_plugin import FedAdam, FedExP, FedYogi
from fednnnn_plugin.errors import RunError, UserError

both = pytest.mark.parametrize("rule", [FedAdam, FedYogi])
values = st.floats(-1e3, 1e3)


def step(optimizer: Any, update: Any, **measured: float | None) -> None:
    [group] = optimizer.param_groups
    [w] = group["params"]
    w.grad = -torch.as_tensor(update, dtype=w.dtype)
    optimizer.step(**measured)


def test_fedexp_by_hand() -> None:
    """Two clients, two rounds, ε = 4.

    Round 1: Δ = (10, 0), (-2, 4): S = (4, 2), N² = 20, mean square (100 + 20) / 2 = 60,
    η_g = 60 / (2 · 24) = 5/4. Round 2: Δ = (3, 4) twice: N² = 25 = mean square, and
    25 / (2 · 29) < 1, so η_g = 1.
    """
    w = Parameter(torch.tensor([1.0, 2.0]))
    optimizer = FedExP([w], epsilon=9.0)
    optimizer.load_state_dict(FedExP([w], epsilon=4.0).state_dict())
    step(optimizer, [4.0, 2.0], mean_client_square=60.0)
    assert w.tolist() == [1 + 5, 2 + 2.5]
    step(optimizer, [3.0, 4.0], mean_client_square=25.0)
    assert w.tolist() == [6 + 3, 4.5 + 4]
    assert not optimizer.state


def test_fedyogi_by_hand() -> None:
    """β₁ = 1/2, β₂ = 1/16, τ = 2, so v_{-1} = 4, and η = 15.

    Round 1, S = (8, 1): 64 > 4, so v = 4 + 15/16 · 64 = 64; 1 < 4, so v = 4 - 15/16 = 1.75²;
    m = (4, 1/2), moves 15 (4/10, 0.5/3.75) = (6, 2). Round 2, S = 0: v stays, m halves.
    """
    w = Parameter(torch.tensor([1.0, 2.0], dtype=torch.float64))
    optimizer = FedYogi([w], lr=15.0, beta1=0.5, beta2=1 / 16, tau=2.0)
    step(optimizer, [8.0, 1.0])
    assert optimizer.state[w]["second_moment"].tolist() == [64.0, 1.75**2]
    assert w.tolist() == pytest.approx([7.0, 4.0], rel=1e-15)
    step(optimizer, [0.0, 0.0])
    assert w.tolist() == pytest.approx([10.0, 5.0], rel=1e-15)
    assert optimizer.state[w]["second_moment"].tolist() == [64.0, 1.75**2]


@both
@settings(max_examples=settings().max_examples // 2)
@given(updates=st.lists(values, min_size=1, max_size=6), beta1=st.sampled_from([0.0, 0.9]))
def test_the_moments_are_the_sources(rule: Any, updates: list[float], beta1: float) -> None:
    """Against the equations in plain numbers; v stays positive, whatever comes."""
    w = Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = rule([w], lr=0.1, beta1=beta1)
    m, v, expected = 0.0, 1e-6, 0.0
    for update in updates:
        step(optimizer, [update])
        m = beta1 * m + (1 - beta1) * update
        if rule is FedAdam:
            v = 0.99 * v + 0.01 * update**2
        elif v > update**2:
            v -= 0.01 * update**2
        elif v < update**2:
            v += 0.01 * update**2
        expected += 0.1 * m / (math.sqrt(v) + 1e-3)
        assert optimizer.state[w]["second_moment"].item() == pytest.approx(v, rel=1e-9)
        assert optimizer.state[w]["second_moment"].item() > 0
    assert w.item() == pytest.approx(expected, rel=1e-9, abs=1e-9)


@both
def test_a_second_moment_that_overflows_ends_the_run(rule: Any) -> None:
    with pytest.raises(RunError, match="v is no longer finite"):
        step(rule([Parameter(torch.zeros(1))], lr=1.0), [1e30])


@both
@pytest.mark.parametrize(
    ("name", "bad"), [("lr", 0.0), ("tau", math.inf), ("tau", "1"), ("beta1", 1.0), ("beta2", None)]
)
def test_moments_out_of_range_are_named(rule: Any, name: str, bad: object) -> None:
    with pytest.raises(UserError, match=rf"^{name}: .*must be "):
        rule([Parameter(torch.zeros(1))], **{"lr": 1.0, name: bad})


@both
def test_a_missing_rate_moves_nothing(rule: Any) -> None:
    optimizer = rule([Parameter(torch.zeros(1))], lr=None)
    with pytest.raises(UserError, match="lr is missing"):
        step(optimizer, [1.0])
    assert not optimizer.state


@pytest.mark.parametrize("square", [None, -1.0, math.nan])
def test_a_mean_square_that_is_none_moves_nothing(square: float | None) -> None:
    w = Parameter(torch.zeros(1))
    with pytest.raises(UserError, match=r"^FedExP\.step: mean_client_square"):
        step(FedExP([w]), [1.0], mean_client_square=square)
    assert w.item() == 0
