"""FedNNNN, Norm-Norm and Momentum: βE, N near 0, and what they say of missing values."""

import math
from typing import Any

import pytest
import torch
from torch.nn import Parameter

from fednnnn_plugin import FedNNNN, Momentum, NormNorm
from fednnnn_plugin.errors import UserError

normalising = pytest.mark.parametrize("rule", [FedNNNN, NormNorm])


def make(rule: Any, parameters: Any, **more: float) -> Any:
    return rule(parameters, **{"beta": 0.5, **({"gamma": 0.5} if rule is FedNNNN else {}), **more})


def test_each_group_has_its_own_beta_and_gamma() -> None:
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
@pytest.mark.parametrize(("lr", "scale"), [(0.25, 1e-12), (1.0, 1.0), (1.0, 1e12)])
def test_the_first_move_has_norm_beta_e(rule: Any, lr: float, scale: float) -> None:
    """Eq. 9, whatever the direction, the size and the number of parameters."""
    generator = torch.Generator().manual_seed(7)
    parameters = [Parameter(torch.zeros(shape)) for shape in [(40, 30), (30,), ()]]
    optimizer = make(rule, parameters, lr=lr, beta=0.7)
    for parameter in parameters:
        parameter.grad = scale * torch.randn(parameter.shape, generator=generator)
    optimizer.step(mean_client_norm=100.0 * scale)
    move = math.sqrt(sum(p.detach().double().square().sum().item() for p in parameters))
    assert move == pytest.approx(lr * 0.7 * 100.0 * scale, rel=1e-6)


@normalising
@pytest.mark.parametrize(
    ("mean_update", "mean_client_norm"),
    [(1.0, 1e6), (0.0, 5.0), (0.0, 0.0), (1e-9, 0.0)],
    ids=["N = 1e-6 E", "N = 0", "N = E = 0", "E = 0"],
)
def test_near_zero_nothing_moves_and_the_momentum_is_kept(
    rule: Any, mean_update: float, mean_client_norm: float
) -> None:
    w, straight = Parameter(torch.zeros(2)), Parameter(torch.zeros(2))
    interrupted, uninterrupted = make(rule, [w]), make(rule, [straight])
    for gradient in ((3.0, 4.0), (4.0, 3.0)):
        w.grad = straight.grad = -torch.tensor(gradient)
        interrupted.step(mean_client_norm=10.0)
        assert interrupted.degenerate is False
        uninterrupted.step(mean_client_norm=10.0)
        w.grad = -torch.tensor([mean_update, 0.0])
        interrupted.step(mean_client_norm=mean_client_norm)
        assert interrupted.degenerate is True
        assert torch.equal(w, straight)


@normalising
def test_just_above_near_zero_the_update_is_normalised(rule: Any) -> None:
    w = Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = make(rule, [w])
    w.grad = torch.tensor([-1.001e-6, 0.0], dtype=torch.float64)
    optimizer.step(mean_client_norm=1.0)
    assert optimizer.degenerate is False
    assert w[0].item() == pytest.approx(0.5, rel=1e-12)


@normalising
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_ratio_beyond_half_precision(rule: Any, dtype: torch.dtype) -> None:
    """E/N = 2^18 does not fit into float16; the move, of norm βE, does."""
    w = Parameter(torch.zeros(2, dtype=dtype))
    optimizer = make(rule, [w])
    w.grad = torch.tensor([-(2.0**-14), 0.0], dtype=dtype)
    optimizer.step(mean_client_norm=16.0)
    assert w.tolist() == [8.0, 0.0]


@pytest.mark.parametrize(
    ("rule", "arguments", "given", "named"),
    [
        (FedNNNN, {"gamma": 0.5}, 1.0, "beta"),
        (FedNNNN, {"beta": 0.5}, 1.0, "gamma"),
        (NormNorm, {}, 1.0, "beta"),
        (Momentum, {}, None, "gamma"),
        *((NormNorm, {"beta": 0.5}, bad, "mean_client_norm") for bad in (None, -1.0, math.inf)),
        (FedNNNN, {"beta": 0.5, "gamma": 0.5}, math.nan, "mean_client_norm"),
    ],
)
@pytest.mark.parametrize("update", [[1.0], [0.0]], ids=["usual", "degenerate"])
def test_what_a_step_misses_is_named_and_nothing_moves(
    rule: Any, arguments: dict[str, float], given: float | None, named: str, update: list[float]
) -> None:
    w = Parameter(torch.zeros(1))
    w.grad = -torch.tensor(update)
    measured = {} if rule is Momentum else {"mean_client_norm": given}
    with pytest.raises(UserError, match=rf"^{rule.__name__}\.step: {named}"):
        rule([w], **arguments).step(**measured)
    assert w.item() == 0


@pytest.mark.parametrize("wrong", [{"gamma": 1.5}, {"beta": -1.0}, {"lr": None}, {"lr": -1.0}])
def test_a_coefficient_of_one_group_is_named_and_nothing_moves(wrong: dict[str, Any]) -> None:
    w, v = (Parameter(torch.zeros(1)) for _ in range(2))
    optimizer = FedNNNN([{"params": [w]}, {"params": [v], **wrong}], beta=0.5, gamma=0.5)
    w.grad = v.grad = torch.ones(1)
    with pytest.raises(UserError, match=rf"^FedNNNN\.step: {next(iter(wrong))}"):
        optimizer.step(mean_client_norm=1.0)
    assert w.item() == v.item() == 0


@pytest.mark.parametrize("rule", [FedNNNN, Momentum])
def test_momentum_is_another_name_of_gamma(rule: Any) -> None:
    w = Parameter(torch.zeros(1))
    assert rule([w], momentum=0.5).defaults == rule([w], gamma=0.5).defaults
    assert rule([w], momentum=0.0).defaults["gamma"] == 0.0
    with pytest.raises(UserError, match="gamma"):
        rule([w], momentum=1.0)
    with pytest.raises(UserError, match="two names"):
        rule([w], gamma=0.5, momentum=0.6)
