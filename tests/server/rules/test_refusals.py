"""What a rule refuses: the argument is named, and nothing moves."""

import inspect
import math
from typing import Any

import pytest
import torch
from torch.nn import Parameter

from fednnnn_plugin import FedAdam, FedExP, FedNNNN, FedYogi, Momentum, NormNorm
from fednnnn_plugin.errors import RunError, UserError
from fednnnn_plugin.server.rules import RULES

ADAPTIVE = [FedAdam, FedYogi]
OURS = [name for name, rule in RULES.items() if rule.optimizer.__module__.startswith("fednnnn")]
BOTH = {"beta": 0.5, "gamma": 0.5}
E = "mean_client_norm"


@pytest.mark.parametrize("name", OURS)
def test_rule_argument_out_of_range_is_named(name: str) -> None:
    """Every argument but the other name of γ; decays end below 1, the others begin above 0."""
    optimizer = RULES[name].optimizer
    needed = {"lr": 1.0} if optimizer in ADAPTIVE else {}
    for argument in inspect.signature(optimizer).parameters.keys() - {"params", "momentum"}:
        end = 1.0 if argument in ("gamma", "beta1", "beta2") else 0.0
        for bad in (-1.0, math.inf, math.nan, "1", True, end):
            with pytest.raises(UserError, match=f"^{argument}: "):
                optimizer([Parameter(torch.zeros(1))], **needed | {argument: bad})


@pytest.mark.parametrize("rule", ADAPTIVE)
@pytest.mark.parametrize("tau", [1e-30, 1e20, 1e300])
def test_tau_has_a_square_in_its_dtype(rule: Any, tau: float) -> None:
    with pytest.raises(UserError, match=r"tau: 1e[-+]\d+: must be from 3.7e-23 to 1.8e\+19: "):
        rule([Parameter(torch.zeros(1))], lr=1.0, tau=tau)


@pytest.mark.parametrize(
    ("rule", "arguments", "of_group", "measured", "named"),
    [
        (FedNNNN, {"gamma": 0.5}, {}, {E: 1.0}, "beta"),
        (FedNNNN, {"beta": 0.5}, {}, {E: 1.0}, "gamma"),
        (NormNorm, {}, {}, {E: 1.0}, "beta"),
        (Momentum, {}, {}, {}, "gamma"),
        *((NormNorm, {"beta": 0.5}, {}, {E: bad}, E) for bad in (None, -1.0, math.inf)),
        (FedNNNN, BOTH, {}, {E: math.nan}, E),
        *((FedNNNN, BOTH, {key: -1.0}, {E: 1.0}, key) for key in ("beta", "lr")),
        (FedNNNN, BOTH, {"gamma": 1.5}, {E: 1.0}, "gamma"),
        (FedNNNN, BOTH, {"lr": None}, {E: 1.0}, "lr"),
        *((rule, {"lr": None}, {}, {}, "lr is missing") for rule in ADAPTIVE),
        (FedAdam, {"lr": 1.0}, {"beta1": 1.5}, {}, "beta1"),
        (FedAdam, {"lr": 1.0}, {"beta2": -3.0}, {}, "beta2"),
        (FedAdam, {"lr": 1.0}, {"tau": -5.0}, {}, "tau"),
        (FedExP, {}, {"epsilon": 0.0}, {"mean_client_square": 1.0}, "epsilon"),
    ],
)
@pytest.mark.parametrize("update", [1.0, 0.0], ids=["usual", "degenerate"])
def test_rule_step_with_a_mistake_moves_nothing(
    rule: Any,
    arguments: dict[str, Any],
    of_group: dict[str, Any],
    measured: dict[str, Any],
    named: str,
    update: float,
) -> None:
    """Not in the group before the mistake's either."""
    parameters = [Parameter(torch.zeros(1)) for _ in range(2)]
    for parameter in parameters:
        parameter.grad = torch.tensor([-update])

    def step() -> None:
        groups = [{"params": parameters[:1]}, {"params": parameters[1:], **of_group}]
        rule(groups, **arguments).step(**measured)

    with pytest.raises(UserError, match=rf"^({rule.__name__}\.step: )?{named}"):
        step()
    assert [parameter.item() for parameter in parameters] == [0.0, 0.0]


@pytest.mark.parametrize("rule", ADAPTIVE)
def test_second_moment_that_overflows_ends_the_run(rule: Any) -> None:
    w = Parameter(torch.zeros(1))
    w.grad = torch.tensor([-1e30])
    with pytest.raises(RunError, match="v is no longer finite"):
        rule([w], lr=1.0).step()
