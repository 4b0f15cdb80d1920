"""Every rule: by hand, then one battery over all of them. A new rule is one more row."""

import inspect
import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.server.rules import RULES
from fednnnn_plugin.user_code import on_threads

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
DTYPES = [torch.float16, torch.float32, torch.float64]

# Two clients, two rounds, from w_0 = (1, 2).
# Round 1: Δ = (0, 25), (24, 7): S = (12, 16), N = 20, E = 25, mean square 625.
# Round 2: Δ = (9, 12), (-3, -4): S = (3, 4), N = 5, E = 10, mean square 125.
UPDATES = [(12.0, 16.0), (3.0, 4.0)]
MEASURED = [
    {"mean_client_norm": 25.0, "mean_client_square": 625.0},
    {"mean_client_norm": 10.0, "mean_client_square": 125.0},
]


@dataclass(frozen=True)
class Row:
    """A rule with coefficients, and where the two rounds lead by its equations."""

    name: str
    arguments: dict[str, float]
    served: tuple[tuple[float, float], tuple[float, float]]

    def make(self, parameters: Any, **more: float) -> Any:
        return RULES[self.name].optimizer(parameters, **(self.arguments | more))

    def step(self, optimizer: Any, round_: int, closure: Any = None) -> Any:
        wants = {name: MEASURED[round_][name] for name in RULES[self.name].wants}
        return optimizer.step(closure, **wants)

    def play(self, optimizer: Any, w: Tensor, round_: int) -> None:
        w.grad = -torch.tensor(UPDATES[round_], dtype=w.dtype, device=w.device)
        self.step(optimizer, round_)


ZERO = {"beta1": 0.0, "beta2": 0.0}
YOGI = (1 + 192 / (160**0.5 + 4), 2 + 256 / (272**0.5 + 4))
ROWS = [
    Row("PaperFedAvg", {}, ((13, 18), (16, 22))),
    Row("PaperFedProx", {}, ((13, 18), (16, 22))),
    # β E/N is 5/8, then 1.
    Row("NormNorm", {"beta": 0.5}, ((8.5, 12), (11.5, 16))),
    # d_1 = S; d_2 = d_1 / 2 + S = (9, 12)
    Row("Momentum", {"gamma": 0.5}, ((13, 18), (22, 30))),
    # d_1 = 5/8 S = (7.5, 10); d_2 = d_1 / 2 + S = (6.75, 9)
    Row("FedNNNN", {"beta": 0.5, "gamma": 0.5}, ((8.5, 12), (15.25, 21))),
    # 625 / (2 (400 + 225)) < 1: η_g = 1; then 125 / (2 (25 + 225)) < 1.
    Row("FedExP", {"epsilon": 225.0}, ((13, 18), (16, 22))),
    # β₁ = β₂ = 0 and τ = 4: v = S², so the moves are 16 (12/16, 16/20) and 16 (3/7, 4/8).
    Row("FedAdam", ZERO | {"lr": 16.0, "tau": 4.0}, ((13, 14.8), (13 + 48 / 7, 22.8))),
    # v = 16 + S² = (160, 272), then v - S² = (151, 256).
    Row(
        "FedYogi",
        ZERO | {"lr": 16.0, "tau": 4.0},
        (YOGI, (YOGI[0] + 48 / (151**0.5 + 4), YOGI[1] + 64 / 20)),
    ),
]
every_rule = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)


def test_rules_all_have_a_row() -> None:
    ours = {n for n, r in RULES.items() if r.optimizer.__module__.startswith("fednnnn")}
    assert {row.name for row in ROWS} == ours
    assert list(RULES)[:5] == ["PaperFedAvg", "PaperFedProx", "NormNorm", "Momentum", "FedNNNN"]
    for rule in (RULES[name] for name in ours):
        parameters = inspect.signature(rule.optimizer).parameters
        for name, key in rule.keys.items():
            assert key.default in (None, parameters[key.argument or name].default)


@every_rule
def test_rule_worked_by_hand(row: Row) -> None:
    w = Parameter(torch.tensor([1.0, 2.0], dtype=torch.float64))
    optimizer = row.make([w])
    for round_, served in enumerate(row.served):
        row.play(optimizer, w, round_)
        assert w.tolist() == pytest.approx(served, rel=1e-14)


@every_rule
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rule_keeps_dtype_device_and_gradient(row: Row, dtype: torch.dtype, device: str) -> None:
    """A parameter without a gradient stays where it is; a gradient of zeros moves nothing."""
    w = Parameter(torch.tensor([1.0, 2.0], dtype=dtype, device=device))
    frozen = Parameter(torch.ones(2))
    optimizer = row.make([frozen, w])
    w.grad = torch.zeros_like(w)
    row.step(optimizer, 0)
    assert w.tolist() == [1.0, 2.0]
    for round_, update in enumerate(UPDATES):
        row.play(optimizer, w, round_)
        assert w.grad.tolist() == [-x for x in update]
    tensors = [w, *optimizer.state[w].values()]
    assert {(t.dtype, t.device.type) for t in tensors} == {(dtype, device)}
    assert w.tolist() != [1.0, 2.0]
    assert frozen.tolist() == [1.0, 1.0]


@every_rule
def test_rule_refuses_a_gradient_not_finite(row: Row) -> None:
    """Not in the second group either."""
    first, second = Parameter(torch.zeros(2)), Parameter(torch.zeros(2))
    optimizer = row.make([{"params": [first]}, {"params": [second]}])
    first.grad, second.grad = torch.ones(2), torch.tensor([1.0, math.nan])
    with pytest.raises(UserError, match=r"\.step: the .*gradient"):
        row.step(optimizer, 0)
    assert torch.cat([first, second]).tolist() == [0.0] * 4
    assert not optimizer.state


@every_rule
def test_rule_closure_gives_gradient_and_loss(row: Row) -> None:
    w = Parameter(torch.tensor([3.0, 4.0]))

    def closure() -> float:
        loss = 0.5 * w.square().sum()
        loss.backward()
        return loss.item()

    with torch.no_grad():
        assert row.step(row.make([w]), 0, closure) == 12.5
    assert w.tolist() != [3.0, 4.0]


@every_rule
def test_rule_bits_depend_on_no_threads(row: Row) -> None:
    updates = torch.randn(2, 100_003, generator=torch.Generator().manual_seed(0))
    results = []
    for count in (1, 3):
        w = Parameter(torch.zeros(100_003))
        optimizer = row.make([w])
        with on_threads(count):
            for round_, update in enumerate(updates):
                w.grad = -update
                row.step(optimizer, round_)
        results.append(w.detach())
    assert torch.equal(*results)
