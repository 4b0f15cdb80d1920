"""What the server rules say when β, γ, E or a value is missing or wrong."""

import math

import pytest
import torch
from torch.nn import Parameter

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.server.optimizers import FedNNNN, Momentum, NormNorm

NOT_FINITE = [math.nan, math.inf, -math.inf]


def parameter() -> Parameter:
    w = Parameter(torch.zeros(2))
    w.grad = -torch.tensor([3.0, 4.0])
    return w


@pytest.mark.parametrize(
    ("optimizer", "arguments", "missing"),
    [
        (FedNNNN, {"gamma": 0.5}, "beta"),
        (FedNNNN, {"beta": 0.5}, "gamma"),
        (NormNorm, {}, "beta"),
    ],
)
def test_a_missing_hyperparameter_is_named_at_step(optimizer, arguments, missing: str) -> None:
    w = parameter()
    with pytest.raises(UserError, match=rf"{optimizer.__name__}.*\b{missing}\b.*missing") as caught:
        optimizer([w], **arguments).step(mean_client_norm=5.0)
    assert f"train_args.{missing}" in str(caught.value)
    assert w.tolist() == [0.0, 0.0]


def test_momentum_without_gamma_names_it_at_step() -> None:
    w = parameter()
    with pytest.raises(UserError, match=r"Momentum.*\bgamma\b.*train_args\.gamma"):
        Momentum([w]).step()
    assert w.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("optimizer", [FedNNNN, NormNorm])
def test_a_missing_client_norm_names_the_recipe_setting(optimizer) -> None:
    """Under FedML's own FedOpt nobody passes E: the recipe asked for the wrong key."""
    w = parameter()
    rule = optimizer.__name__
    with pytest.raises(UserError, match=rf"mean_client_norm.*federated_optimizer: {rule}\b"):
        optimizer([w], beta=0.5).step()
    assert w.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("optimizer", [FedNNNN, NormNorm])
@pytest.mark.parametrize("mean_client_norm", [*NOT_FINITE, -1.0])
def test_an_impossible_client_norm_is_refused(optimizer, mean_client_norm: float) -> None:
    w = parameter()
    arguments = {"beta": 0.5, "gamma": 0.5} if optimizer is FedNNNN else {"beta": 0.5}
    with pytest.raises(UserError, match="mean_client_norm"):
        optimizer([w], **arguments).step(mean_client_norm=mean_client_norm)
    assert w.tolist() == [0.0, 0.0]


def test_nothing_moves_when_one_group_lacks_a_value() -> None:
    first, second = parameter(), parameter()
    optimizer = NormNorm([{"params": [first], "beta": 0.5}, {"params": [second]}])
    with pytest.raises(UserError, match="beta"):
        optimizer.step(mean_client_norm=5.0)
    assert first.tolist() == second.tolist() == [0.0, 0.0]


def test_a_missing_value_is_said_in_a_degenerate_round_too() -> None:
    w = parameter()
    w.grad = torch.zeros(2)
    with pytest.raises(UserError, match="gamma"):
        FedNNNN([w], beta=0.5).step(mean_client_norm=0.0)


@pytest.mark.parametrize("optimizer", [FedNNNN, NormNorm, Momentum])
@pytest.mark.parametrize("lr", [*NOT_FINITE, 0.0, -1.0, "5e-4"])
def test_the_learning_rate_must_be_positive(optimizer, lr) -> None:
    with pytest.raises(UserError, match=r"^lr: .*greater than 0"):
        optimizer([parameter()], lr=lr)


@pytest.mark.parametrize("optimizer", [FedNNNN, NormNorm])
@pytest.mark.parametrize("beta", [*NOT_FINITE, 0.0, -0.1, "0.7"])
def test_beta_must_be_positive(optimizer, beta) -> None:
    with pytest.raises(UserError, match=r"^beta: .*greater than 0"):
        optimizer([parameter()], beta=beta)


@pytest.mark.parametrize("optimizer", [FedNNNN, Momentum])
@pytest.mark.parametrize("name", ["gamma", "momentum"])
@pytest.mark.parametrize("value", [*NOT_FINITE, -0.1, 1.0, 1.5, "0.9"])
def test_gamma_must_be_in_zero_to_one(optimizer, name: str, value) -> None:
    with pytest.raises(UserError, match=r"^gamma: .*at least 0 and less than 1"):
        optimizer([parameter()], **{name: value})


@pytest.mark.parametrize("optimizer", [FedNNNN, Momentum])
def test_momentum_is_another_name_of_gamma(optimizer) -> None:
    for arguments in ({"gamma": 0.9}, {"momentum": 0.9}, {"gamma": 0.9, "momentum": 0.9}):
        made = optimizer([parameter()], **arguments)
        assert made.param_groups[0]["gamma"] == 0.9
    with pytest.raises(UserError, match=r"gamma: 0\.9, momentum: 0\.5"):
        optimizer([parameter()], gamma=0.9, momentum=0.5)


def test_momentum_zero_is_a_value_and_not_a_missing_one() -> None:
    w = parameter()
    Momentum([w], momentum=0.0).step()
    assert w.tolist() == [3.0, 4.0]
