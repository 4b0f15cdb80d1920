"""FedExP, FedAdam and FedYogi: what ends a step."""

from typing import Any

import pytest
import torch
from torch.nn import Parameter

from fednnnn_plugin import FedAdam, FedExP, FedYogi
from fednnnn_plugin.errors import RunError, UserError

both = pytest.mark.parametrize("rule", [FedAdam, FedYogi])


def step(optimizer: Any, update: Any, **measured: float | None) -> None:
    [group] = optimizer.param_groups
    [w] = group["params"]
    w.grad = -torch.as_tensor(update, dtype=w.dtype)
    optimizer.step(**measured)


@both
def test_a_second_moment_that_overflows_ends_the_run(rule: Any) -> None:
    with pytest.raises(RunError, match="v is no longer finite"):
        step(rule([Parameter(torch.zeros(1))], lr=1.0), [1e30])


@both
@pytest.mark.parametrize("tau", [1e-30, 1e20, 1e300])
def test_a_tau_whose_square_the_dtype_has_not(rule: Any, tau: float) -> None:
    with pytest.raises(UserError, match=r"tau: 1e[-+]\d+: must be from 3.7e-23 to 1.8e\+19: "):
        rule([Parameter(torch.zeros(1))], lr=1.0, tau=tau)


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        *((FedAdam, value) for value in ({"beta1": 1.5}, {"beta2": -3.0}, {"tau": -5.0})),
        *((FedExP, {"epsilon": value}) for value in (-1.0, 0.0)),
    ],
)
def test_a_group_s_own_value_out_of_range_moves_nothing(rule: Any, value: dict[str, float]) -> None:
    w, measured = Parameter(torch.zeros(1)), {"mean_client_square": 1.0} if rule is FedExP else {}
    with pytest.raises(UserError, match=f"{next(iter(value))}: "):
        step(rule([{"params": [w], **value}], lr=1.0), [1.0], **measured)
    assert w.item() == 0.0


@both
def test_a_missing_rate_moves_nothing(rule: Any) -> None:
    optimizer = rule([Parameter(torch.zeros(1))], lr=None)
    with pytest.raises(UserError, match="lr is missing"):
        step(optimizer, [1.0])
    assert not optimizer.state
