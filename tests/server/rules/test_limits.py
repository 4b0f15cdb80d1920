"""Rules at their limits: arguments that are refused, N near 0, half precision."""

import inspect
import math
from typing import Any

import pytest
import torch
from torch.nn import Parameter

from fednnnn_plugin import FedAdagrad, FedAdam, FedExP, FedNNNN, FedYogi, Momentum, NormNorm
from fednnnn_plugin.errors import RunError, UserError
from fednnnn_plugin.server.rules import RULES

BOTH = {"beta": 0.5, "gamma": 0.5}
E = "mean_client_norm"


@pytest.mark.parametrize("name", [*RULES])
def test_rule_argument_out_of_range_is_named(name: str) -> None:
    """Every argument but the other name of γ; decays end below 1, the others begin above 0."""
    optimizer = RULES[name].optimizer
    needed = {"lr": 1.0} if optimizer in (FedAdam, FedYogi, FedAdagrad) else {}
    arguments = inspect.signature(optimizer).parameters.keys() - {"params"}
    for argument in arguments - ({"momentum"} if optimizer is Momentum else set()):
        decays = ("gamma", "momentum", "beta1", "beta2", "dampening")
        end = 1.0 if argument in decays else 0.0
        for bad in (-1.0, math.nan, True, end):
            with pytest.raises(UserError, match=f"^{argument}: "):
                optimizer([Parameter(torch.zeros(1))], **needed | {argument: bad})


@pytest.mark.parametrize("tau", [1e-30, 1e20])
def test_tau_has_a_square_in_its_dtype(tau: float) -> None:
    with pytest.raises(UserError, match="tau: "):
        FedAdam([Parameter(torch.zeros(1))], lr=1.0, tau=tau)


@pytest.mark.parametrize(
    ("rule", "arguments", "of_group", "measured", "named"),
    [
        (FedNNNN, {"gamma": 0.5}, {}, {E: 1.0}, "beta"),
        (Momentum, {}, {}, {}, "gamma"),
        *((NormNorm, {"beta": 0.5}, {}, {E: bad}, E) for bad in (None, -1.0, math.nan)),
        (FedNNNN, BOTH, {"gamma": 1.5}, {E: 1.0}, "gamma"),
        (FedNNNN, BOTH, {"lr": None}, {E: 1.0}, "lr"),
        (FedYogi, {"lr": None}, {}, {}, "lr"),
        (FedAdam, {"lr": 1.0}, {"tau": -3.0}, {}, "tau"),
        (FedExP, {}, {"epsilon": 0.0}, {"mean_client_square": 1.0}, "epsilon"),
    ],
)
def test_rule_step_with_a_mistake_moves_nothing(
    rule: Any, arguments: Any, of_group: Any, measured: Any, named: str
) -> None:
    """Not in the group before the mistake's either."""
    first, second = Parameter(torch.zeros(1)), Parameter(torch.zeros(1))
    first.grad = second.grad = torch.tensor([-1.0])
    made = rule([{"params": [first]}, {"params": [second]}], **arguments)
    made.param_groups[1].update(of_group)
    with pytest.raises(UserError, match=rf"^({rule.__name__}\.step: )?{named}"):
        made.step(**measured)
    assert (first.item(), second.item()) == (0.0, 0.0)


def test_gamma_may_be_called_momentum() -> None:
    w = Parameter(torch.zeros(1))
    assert Momentum([w], momentum=0.0).defaults == Momentum([w], gamma=0.0).defaults
    for mistake in ({"momentum": 1.0}, {"gamma": 0.5, "momentum": 0.6}):
        with pytest.raises(UserError, match="gamma"):
            Momentum([w], **mistake)


def test_second_moment_that_overflows_ends_the_run() -> None:
    w = Parameter(torch.zeros(1))
    w.grad = torch.tensor([-1e30])
    with pytest.raises(RunError):
        FedYogi([w], lr=1.0).step()


normalising = pytest.mark.parametrize("rule", [FedNNNN, NormNorm])


def make(rule: Any, parameters: Any, **more: float) -> Any:
    return rule(parameters, **{"beta": 0.5, **({"gamma": 0.5} if rule is FedNNNN else {}), **more})


def test_normalising_has_beta_and_gamma_by_group() -> None:
    first, second = Parameter(torch.zeros(1)), Parameter(torch.zeros(1))
    optimizer = FedNNNN(
        [{"params": [first], "beta": 1.0, "gamma": 0.0}, {"params": [second], "lr": 3.0}],
        beta=0.5,
        gamma=0.5,
    )
    for _ in range(2):
        first.grad, second.grad = torch.tensor([-3.0]), torch.tensor([-4.0])
        optimizer.step(mean_client_norm=10.0)  # E/N = 2
    assert first.item() == 6.0 + 6.0
    assert second.item() == 3.0 * 4.0 + 3.0 * (2.0 + 4.0)


@normalising
@pytest.mark.parametrize(("n", "e"), [(1.0, 1e6), (0.0, 5.0), (0.0, 0.0), (1e-9, 0.0)])
def test_normalising_near_zero_keeps_the_momentum(rule: Any, n: float, e: float) -> None:
    w, straight = Parameter(torch.zeros(2)), Parameter(torch.zeros(2))
    interrupted, uninterrupted = make(rule, [w]), make(rule, [straight])
    for gradient in ((3.0, 4.0), (4.0, 3.0)):
        w.grad = straight.grad = -torch.tensor(gradient)
        interrupted.step(mean_client_norm=10.0)
        assert interrupted.degenerate is False
        uninterrupted.step(mean_client_norm=10.0)
        w.grad = -torch.tensor([n, 0.0])
        interrupted.step(mean_client_norm=e)
        assert interrupted.degenerate is True
        assert torch.equal(w, straight)


@normalising
@pytest.mark.parametrize(
    ("dtype", "update", "mean_client_norm"),
    [
        (torch.float64, 1.001e-6, 1.0),  # N just above what counts as zero
        # E/N = 2^18 does not fit into float16; the move, of norm βE, does.
        (torch.float16, 2.0**-14, 16.0),
    ],
)
def test_normalising_works_to_the_least_n(
    rule: Any, dtype: torch.dtype, update: float, mean_client_norm: float
) -> None:
    w = Parameter(torch.zeros(2, dtype=dtype))
    optimizer = make(rule, [w])
    w.grad = torch.tensor([-update, 0.0], dtype=dtype)
    optimizer.step(mean_client_norm=mean_client_norm)
    assert optimizer.degenerate is False
    assert w.tolist() == pytest.approx([0.5 * mean_client_norm, 0.0], rel=1e-12)
