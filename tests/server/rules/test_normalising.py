"""FedNNNN and Norm-Norm: groups, N near 0, half precision."""

from typing import Any

import pytest
import torch
from torch.nn import Parameter

from fednnnn_plugin import FedNNNN, NormNorm

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
        (torch.bfloat16, 2.0**-14, 16.0),
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
