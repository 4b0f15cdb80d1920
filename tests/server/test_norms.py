"""Norms in float64, by tensor and by module."""

import math

import pytest
import torch
from torch import nn

from fednnnn_plugin.server.norms import CHUNK, by_module, global_norm, owner, squared_norm


def test_worked_by_hand() -> None:
    assert squared_norm(torch.tensor([[3.0], [4.0]])) == 25.0
    assert global_norm([torch.tensor([3.0, 0.0]), torch.tensor(4.0)]) == 5.0
    assert squared_norm(torch.zeros(0)) == 0.0
    assert global_norm([]) == 0.0


@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
def test_every_element_counts_once(size: int) -> None:
    assert squared_norm(torch.full((size,), 3.0)) == 9.0 * size
    for position in (0, size // 2, size - 1):
        x = torch.zeros(size)
        x[position] = 2.0
        assert squared_norm(x) == 4.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_squares_that_the_tensors_own_dtype_could_not_hold(dtype: torch.dtype) -> None:
    large, small = torch.finfo(dtype).max, torch.finfo(dtype).smallest_normal
    assert squared_norm(torch.tensor([large], dtype=dtype)) == pytest.approx(large**2, rel=1e-12)
    assert squared_norm(torch.tensor([small], dtype=dtype)) == pytest.approx(small**2, rel=1e-12)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("position", [0, 5000, 10_000])
def test_what_is_not_finite_shows(value: float, position: int) -> None:
    x = torch.ones(10_001)
    x[position] = value
    assert not math.isfinite(squared_norm(x))


def test_layout_and_gradients() -> None:
    x = torch.arange(24.0).reshape(2, 3, 2, 2).requires_grad_()
    expected = sum(k**2 for k in range(24))
    for same in (x, x.detach().to(memory_format=torch.channels_last), x.transpose(0, 3)):
        assert squared_norm(same) == pytest.approx(expected, rel=1e-15)


def test_parameters_belong_to_their_modules() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))
            self.body = nn.Sequential(nn.Linear(1, 1), nn.Conv2d(1, 1, 1))

    net = Net()
    for name, parameter in net.named_parameters():
        module = net.get_submodule(owner(name))
        assert any(parameter is own for own in module.parameters(recurse=False))
    assert owner("scale") == ""
    assert owner("body.0.weight") == "body.0"


def test_weight_and_bias_are_one_vector() -> None:
    squares = {"fc3.weight": 9.0, "conv32.weight": 1.0, "fc3.bias": 16.0, "scale": 4.0}
    assert by_module(squares) == {"fc3": 5.0, "conv32": 1.0, "": 2.0}
