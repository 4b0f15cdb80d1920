"""One battery over all rules; a new one needs no row."""

import inspect
import math
from typing import Any

import pytest
import torch
from torch.nn import Parameter

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.server.rules import RULES
from fednnnn_plugin.user_code import on_threads

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
SETTINGS = {
    name: {key: 0.5 for key, of in rule.keys.items() if of.default is None}
    for name, rule in RULES.items()
}
every_rule = pytest.mark.parametrize("name", SETTINGS)


def make(name: str, parameters: Any) -> Any:
    return RULES[name].make(parameters, SETTINGS[name])


def step(name: str, optimizer: Any) -> None:
    measured = {"mean_client_norm": 25.0, "mean_client_square": 625.0}
    measured |= {"clients": 2, "population": 4}
    optimizer.step(**{wanted: measured[wanted] for wanted in RULES[name].wants})


def test_rules_have_one_order_and_one_default() -> None:
    assert list(RULES)[:5] == ["PaperFedAvg", "PaperFedProx", "NormNorm", "Momentum", "FedNNNN"]
    for rule in RULES.values():
        parameters = inspect.signature(rule.optimizer).parameters
        for name, key in rule.keys.items():
            assert key.default in (None, parameters[key.argument or name].default)


@every_rule
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rule_keeps_dtype_device_and_gradient(name: str, dtype: torch.dtype, device: str) -> None:
    """A parameter without a gradient stays where it is; a gradient of zeros moves nothing."""
    w = Parameter(torch.tensor([1.0, 2.0], dtype=dtype, device=device))
    frozen = Parameter(torch.ones(2))
    optimizer = make(name, [frozen, w])
    w.grad = torch.zeros_like(w)
    step(name, optimizer)
    assert w.tolist() == [1.0, 2.0]
    for gradient in ([-12.0, -16.0], [-3.0, -4.0]):
        w.grad = torch.tensor(gradient, dtype=dtype, device=device)
        step(name, optimizer)
        assert w.grad.tolist() == gradient
    tensors = [w, *optimizer.state[w].values()]
    assert {(t.dtype, t.device.type) for t in tensors} == {(dtype, device)}
    assert w.tolist() != [1.0, 2.0]
    assert frozen.tolist() == [1.0, 1.0]


@every_rule
def test_rule_refuses_a_gradient_not_finite(name: str) -> None:
    """Not in the second group either."""
    first, second = Parameter(torch.zeros(2)), Parameter(torch.zeros(2))
    optimizer = make(name, [{"params": [first]}, {"params": [second]}])
    first.grad, second.grad = torch.ones(2), torch.tensor([1.0, math.nan])
    with pytest.raises(UserError, match=r"\.step: the .*gradient"):
        step(name, optimizer)
    assert torch.cat([first, second]).tolist() == [0.0] * 4
    assert not optimizer.state


@every_rule
def test_rule_bits_depend_on_no_threads(name: str) -> None:
    updates = torch.randn(2, 100_003, generator=torch.Generator().manual_seed(0))
    results = []
    for count in (1, 3):
        w = Parameter(torch.zeros(100_003))
        optimizer = make(name, [w])
        with on_threads(count):
            for update in updates:
                w.grad = -update
                step(name, optimizer)
        results.append(w.detach())
    assert torch.equal(*results)
