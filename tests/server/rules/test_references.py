"""Every rule for 50 random steps in fp64, against torch's SGD or its source's formulas in NumPy."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from fednnnn_plugin.server.rules import RULES

STEPS = 50


@dataclass(frozen=True)
class Round:
    """What a server knows after a round of some clients."""

    update: list[Tensor]  # S, a tensor each parameter
    n: float  # ‖S‖
    e: float  # the mean of ‖Δ_k‖
    square: float  # the mean of ‖Δ_k‖²

    @property
    def flat(self) -> np.ndarray:
        return torch.cat([tensor.flatten() for tensor in self.update]).numpy()


@pytest.fixture(params=range(3))
def shapes(request: pytest.FixtureRequest) -> list[tuple[int, ...]]:
    """Of one to four parameters with zero to three dimensions of 1 to 5."""
    draws = np.random.default_rng(request.param)
    count = draws.integers(1, 5)
    return [tuple(map(int, draws.integers(1, 6, draws.integers(0, 4)))) for _ in range(count)]


@pytest.fixture
def rounds(shapes: list[tuple[int, ...]]) -> list[Round]:
    """Of three to seven clients, whose updates' scale changes from round to round."""
    draws = np.random.default_rng(len(shapes))

    def rounds() -> Iterator[Round]:
        for _ in range(STEPS):
            scale, clients = 10 ** draws.uniform(-3, 1), draws.integers(3, 8)
            sent = [[scale * draws.normal(size=shape) for shape in shapes] for _ in range(clients)]
            norms = [np.sqrt(sum((part**2).sum() for part in each)) for each in sent]
            mean = [np.mean(parts, axis=0) for parts in zip(*sent, strict=True)]
            n = float(np.sqrt(sum((part**2).sum() for part in mean)))
            square = float(np.mean(np.square(norms)))
            yield Round([torch.as_tensor(part) for part in mean], n, float(np.mean(norms)), square)

    return list(rounds())


def moved_by(
    optimizer: Any, rounds: list[Round], scale: Any = lambda _: 1.0, wants: Any = ()
) -> np.ndarray:
    """Let a torch optimizer step on ``-scale S`` of each round; return all parameters."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for each in rounds:
        for parameter, update in zip(parameters, each.update, strict=True):
            parameter.grad = -scale(each) * update
        named = {"mean_client_norm": each.e, "mean_client_square": each.square}
        optimizer.step(**{name: named[name] for name in wants})
    return torch.cat([parameter.detach().flatten() for parameter in parameters]).numpy()


def start(shapes: list[tuple[int, ...]]) -> list[dict[str, Any]]:
    """A group of the first parameter, and one of the others."""
    parameters = [Parameter(torch.ones(shape, dtype=torch.float64)) for shape in shapes]
    return [{"params": part} for part in (parameters[:1], parameters[1:])]


def by_rule(name: str, shapes: list[tuple[int, ...]], rounds: list[Round], **keys: float) -> Any:
    optimizer = RULES[name].optimizer(start(shapes), **keys)
    return moved_by(optimizer, rounds, wants=RULES[name].wants)


def by_sgd(shapes: list[tuple[int, ...]], rounds: list[Round], momentum: float, scale: Any) -> Any:
    """PyTorch's momentum without dampening: d ← γ d + g, w ← w - d."""
    sgd = torch.optim.SGD(start(shapes), lr=1.0, momentum=momentum, dampening=0.0)
    return moved_by(sgd, rounds, scale)


@pytest.mark.parametrize(
    ("name", "keys", "momentum", "scale"),
    [
        ("PaperFedAvg", {}, 0.0, lambda _: 1.0),
        ("PaperFedProx", {}, 0.0, lambda _: 1.0),
        ("Momentum", {"gamma": 0.9}, 0.9, lambda _: 1.0),
        ("NormNorm", {"beta": 1.1}, 0.0, lambda each: 1.1 * each.e / each.n),
        ("FedNNNN", {"beta": 0.7, "gamma": 0.8}, 0.8, lambda each: 0.7 * each.e / each.n),
        (
            *("FedExP", {"epsilon": 1e-2}, 0.0),
            lambda each: max(1.0, each.square / (2 * (each.n**2 + 1e-2))),
        ),
    ],
)
def test_rule_is_sgd_on_scaled_updates(
    shapes: Any, rounds: Any, name: str, keys: dict[str, float], momentum: float, scale: Any
) -> None:
    """The paper's eqs. 8 and 10 to 13; FedExP's algorithm 1."""
    expected = by_sgd(shapes, rounds, momentum, scale)
    assert by_rule(name, shapes, rounds, **keys) == pytest.approx(expected, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("name", ["FedAdam", "FedYogi"])
def test_adaptive_rule_is_algorithm_2(shapes: Any, rounds: Any, name: str) -> None:
    """Of Reddi et al. (2021), as Flower's strategies state it, without a correction of the bias.

    ``m ← β₁ m + (1 - β₁) S``; FedAdam: ``v ← β₂ v + (1 - β₂) S²``; FedYogi: ``v ← v - (1 - β₂) S²
    sign(v - S²)``; ``w ← w + η m / (√v + τ)``.
    """
    lr, beta1, beta2, tau = 0.05, 0.9, 0.99, 1e-2
    w = np.ones_like(rounds[0].flat)
    m, v = np.zeros_like(w), np.full_like(w, tau**2)
    for each in rounds:
        square = each.flat**2
        m = beta1 * m + (1 - beta1) * each.flat
        if name == "FedAdam":
            v = beta2 * v + (1 - beta2) * square
        else:
            v = v - (1 - beta2) * square * np.sign(v - square)
        w = w + lr * m / (np.sqrt(v) + tau)
    found = by_rule(name, shapes, rounds, lr=lr, beta1=beta1, beta2=beta2, tau=tau)
    assert found == pytest.approx(w, rel=1e-10, abs=1e-12)
