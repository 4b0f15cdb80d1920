"""Every rule for 50 random steps in fp64, against torch's SGD or its source's formulas in NumPy."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import Parameter

from fednnnn_plugin.server.rules import RULES


@dataclass(frozen=True)
class Round:
    """What a server knows after a round of some clients."""

    update: list[np.ndarray]  # S, an array each parameter
    n: float  # ‖S‖
    e: float  # the mean of ‖Δ_k‖
    square: float  # the mean of ‖Δ_k‖²


@pytest.fixture(params=range(3))
def rounds(request: pytest.FixtureRequest) -> list[Round]:
    """Of three to seven clients, whose updates' scale changes from round to round.

    One to four parameters have zero to three dimensions of 1 to 5.
    """
    draws, made = np.random.default_rng(request.param), []
    shapes = [draws.integers(1, 6, draws.integers(0, 4)) for _ in range(draws.integers(1, 5))]
    for _ in range(50):
        scale, clients = 10 ** draws.uniform(-3, 1), draws.integers(3, 8)
        sent = [[scale * draws.normal(size=shape) for shape in shapes] for _ in range(clients)]
        squares = [sum((part**2).sum() for part in each) for each in sent]
        mean = [np.mean(parts, axis=0) for parts in zip(*sent, strict=True)]
        n = np.sqrt(sum((part**2).sum() for part in mean))
        made.append(Round(mean, float(n), float(np.sqrt(squares).mean()), float(np.mean(squares))))
    return made


def moved_by(optimizer_of: Any, rounds: list[Round], scale: Any = None, wants: Any = ()) -> Any:
    """Let a torch optimizer step from ones on ``-scale S`` of each round; return all parameters.

    They are in two groups.
    """
    parameters = [Parameter(torch.ones(s.shape).double()) for s in rounds[0].update]
    optimizer = optimizer_of([{"params": parameters[:1]}, {"params": parameters[1:]}])
    for each in rounds:
        for parameter, update in zip(parameters, each.update, strict=True):
            parameter.grad = -torch.as_tensor(update) * (scale(each) if scale else 1.0)
        named = {"mean_client_norm": each.e, "mean_client_square": each.square}
        named |= {"clients": 3, "population": 12}
        optimizer.step(**{name: named[name] for name in wants})
    return torch.cat([parameter.detach().flatten() for parameter in parameters]).numpy()


def by_rule(name: str, rounds: list[Round], **keys: float) -> Any:
    rule = RULES[name]
    return moved_by(lambda groups: rule.optimizer(groups, **keys), rounds, wants=rule.wants)


SGD = [
    ("PaperFedAvg", {}, 0.0, lambda _: 1.0),
    ("PaperFedProx", {}, 0.0, lambda _: 1.0),
    ("Momentum", {"gamma": 0.9}, 0.9, lambda _: 1.0),
    ("NormNorm", {"beta": 1.1}, 0.0, lambda each: 1.1 * each.e / each.n),
    ("FedNNNN", {"beta": 0.7, "gamma": 0.8}, 0.8, lambda each: 0.7 * each.e / each.n),
    (
        *("FedExP", {"epsilon": 1e-2}, 0.0),
        lambda each: max(1.0, each.square / (2 * (each.n**2 + 1e-2))),
    ),
]
ADAPTIVE = ["FedAdam", "FedYogi", "FedAdagrad"]
OTHERS = ["FedAvgM", "FedDyn"]


def test_rules_all_have_a_reference() -> None:
    assert {row[0] for row in SGD} | {*ADAPTIVE, *OTHERS} == RULES.keys()


@pytest.mark.parametrize(("name", "keys", "momentum", "scale"), SGD)
def test_rule_is_sgd_on_scaled_updates(
    rounds: Any, name: str, keys: dict[str, float], momentum: float, scale: Any
) -> None:
    """The paper's eqs. 8 and 10 to 13; FedExP's algorithm 1.

    PyTorch's momentum without dampening: d ← γ d + g, w ← w - d.
    """

    def sgd(groups: Any) -> Any:
        return torch.optim.SGD(groups, lr=1.0, momentum=momentum, dampening=0.0)

    expected = moved_by(sgd, rounds, scale)
    assert by_rule(name, rounds, **keys) == pytest.approx(expected, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("name", ADAPTIVE)
def test_adaptive_rule_is_algorithm_2(rounds: Any, name: str) -> None:
    """Of Reddi et al. (2021), as Flower's strategies state it, without a correction of the bias.

    The first v is τ², the least that Reddi et al. allow.

    ``m ← β₁ m + (1 - β₁) S``; FedAdam: ``v ← β₂ v + (1 - β₂) S²``; FedYogi: ``v ← v - (1 - β₂) S²
    sign(v - S²)``; FedAdagrad: ``v ← v + S²``; ``w ← w + η m / (√v + τ)``.
    """
    lr, beta1, beta2, tau = 0.05, 0.9, 0.99, 1e-2
    updates = [np.concatenate([part.ravel() for part in each.update]) for each in rounds]
    w = np.ones_like(updates[0])
    m, v = np.zeros_like(w), np.full_like(w, tau**2)
    for update in updates:
        square = update**2
        m = beta1 * m + (1 - beta1) * update
        if name == "FedAdam":
            v = beta2 * v + (1 - beta2) * square
        elif name == "FedAdagrad":
            v = v + square
        else:
            v = v - (1 - beta2) * square * np.sign(v - square)
        w = w + lr * m / (np.sqrt(v) + tau)
    second = {} if name == "FedAdagrad" else {"beta2": beta2}
    found = by_rule(name, rounds, lr=lr, beta1=beta1, tau=tau, **second)
    assert found == pytest.approx(w, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("dampening", [0.0, 0.8])
def test_fedavgm_is_momentum_that_may_be_dampened(rounds: Any, dampening: float) -> None:
    """``v ← γ v + (1 - δ) S``: with δ = γ the mean of Reddi et al., in the first round too."""
    w = v = 0.0 * np.concatenate([part.ravel() for part in rounds[0].update])
    for each in rounds:
        v = 0.8 * v + (1 - dampening) * np.concatenate([part.ravel() for part in each.update])
        w = w + 0.5 * v
    found = by_rule("FedAvgM", rounds, lr=0.5, momentum=0.8, dampening=dampening)
    assert found == pytest.approx(1 + w, rel=1e-10, abs=1e-12)


def test_feddyn_is_algorithm_1(rounds: Any) -> None:
    """Of Acar et al. (2021): a quarter of all clients moves h in each round."""
    h = 0.0 * np.concatenate([part.ravel() for part in rounds[0].update])
    w, alpha = 1 + h, 0.3
    for each in rounds:
        s = np.concatenate([part.ravel() for part in each.update])
        h = h - alpha * 3 / 12 * s
        w = w + s - h / alpha
    found = by_rule("FedDyn", rounds, feddyn_alpha=alpha)
    assert found == pytest.approx(w, rel=1e-10, abs=1e-12)
