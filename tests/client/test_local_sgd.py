"""Local training: two steps by hand, then against torch.optim.SGD."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.client.replica import Replica
from fednnnn_plugin.models import create_model

Batches = list[list[tuple[Tensor, Tensor]]]


def batches(epochs: int, samples: int, batch_size: int, dtype: torch.dtype) -> Batches:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(samples, 1, 8, 8, generator=generator, dtype=torch.float64).to(dtype)
    labels = torch.randint(10, (samples,), generator=generator)
    return [
        [
            (images[picked], labels[picked])
            for picked in torch.randperm(samples, generator=generator).split(batch_size)
        ]
        for _ in range(epochs)
    ]


def test_two_steps_worked_by_hand() -> None:
    """Logits (w₀x, w₁x) with x = 2, η = 0.5, λ = 0.25, μ = 0.75, from w_t = (0, 0).

    Step 1, label 0: p = (½, ½), ∇ℓ = x (p - (1, 0)) = (-1, 1); w = (½, -½).
    Step 2, label 1: p₀ = 1/(1 + e^-2), ∇ℓ = (2 p₀, -2 p₀); decay and proximal term add
    (λ + μ) w = (½, -½); w = (½ - ½ (2 p₀ + ½), …) = (¼ - p₀, p₀ - ¼).
    """
    model = nn.Linear(1, 2, bias=False, dtype=torch.float64)
    nn.init.zeros_(model.weight)
    x = torch.tensor([[2.0]], dtype=torch.float64)
    sgd = LocalSGD(2, 1, 0.5, weight_decay=0.25, prox_mu=0.75, precision="fp64")
    sgd.train(Replica(model), [[(x, torch.tensor([0]))], [(x, torch.tensor([1]))]])
    p0 = 1 / (1 + math.exp(-2))
    assert model.weight.flatten().tolist() == pytest.approx([0.25 - p0, p0 - 0.25], rel=1e-14)


@pytest.mark.parametrize("weight_decay", [0.0, 5e-3])
@pytest.mark.parametrize("prox_mu", [0.0, 0.3])
def test_it_is_torch_sgd_on_the_loss_with_the_proximal_term(
    weight_decay: float, prox_mu: float
) -> None:
    epochs = batches(epochs=3, samples=23, batch_size=5, dtype=torch.float64)
    model, reference = (create_model("nnnn_digits", seed=0).double() for _ in range(2))
    start = [p.detach().clone() for p in reference.parameters()]
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1, weight_decay=weight_decay)
    for images, labels in (batch for epoch in epochs for batch in epoch):
        optimizer.zero_grad()
        loss = F.cross_entropy(reference(images), labels)
        for parameter, anchor in zip(reference.parameters(), start, strict=True):
            loss = loss + prox_mu / 2 * (parameter - anchor).square().sum()
        loss.backward()
        optimizer.step()

    sgd = LocalSGD(3, 5, 0.1, weight_decay=weight_decay, prox_mu=prox_mu, precision="fp64")
    sgd.train(Replica(model), epochs)
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    moved = max((p - a).abs().max() for p, a in zip(model.parameters(), start, strict=True))
    assert moved > 0.01


class _Odd(nn.Module):
    """Parameters that autograd treats in their own ways."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((2, 3), 0.5))
        self.shift = nn.Parameter(torch.full((2, 3), -0.25))  # its gradient is weight's tensor
        self.scale = nn.Parameter(torch.full((4,), 0.25))  # its gradient is an expanded scalar
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, inputs: Tensor) -> Tensor:
        return F.linear(inputs, self.weight + self.shift, self.frozen) * self.scale.sum()


def test_shared_expanded_and_missing_gradients() -> None:
    """As torch.optim.SGD: what is unused stays as it is, decay or not."""
    generator = torch.Generator().manual_seed(1)
    inputs, labels = torch.randn(4, 3, generator=generator), torch.tensor([0, 1, 1, 0])
    model, reference = _Odd(), _Odd()
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1, weight_decay=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(reference(inputs), labels).backward()
        optimizer.step()
    LocalSGD(3, 4, 0.1, weight_decay=0.5).train(Replica(model), [[(inputs, labels)]] * 3)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter, reference.get_parameter(name))
    assert model.unused.tolist() == [1, 1, 1]
    assert model.frozen.tolist() == [1, 1]


def test_it_trains_in_training_mode_and_leaves_no_gradients() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    model.eval()
    LocalSGD(1, 4, 0.1).train(
        Replica(model), [[(torch.arange(12.0).view(4, 3), torch.tensor([0, 1, 0, 1]))]]
    )
    assert model[0].num_batches_tracked == 1
    assert model[0].running_mean.tolist() == pytest.approx([0.45, 0.55, 0.65])
    assert all(parameter.grad is None for parameter in model.parameters())


def test_bf16_computes_coarsely_and_keeps_weights_in_float32() -> None:
    epochs = batches(epochs=1, samples=40, batch_size=10, dtype=torch.float32)
    trained, start = {}, Replica(create_model("nnnn_digits", seed=0)).vector
    for precision in ("fp32", "bf16"):
        ours = Replica(create_model("nnnn_digits", seed=0))
        LocalSGD(1, 10, 0.1, precision=precision).train(ours, epochs)
        assert ours.vector.dtype == torch.float32
        trained[precision] = ours.vector
    error = (trained["fp32"] - trained["bf16"]).norm()
    assert 0 < error < 0.2 * (trained["fp32"] - start).norm()


class _Count(TorchDispatchMode):
    names: tuple[str, ...] = ()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names += (func.__name__,)
        return func(*args, **(kwargs or {}))


def test_a_descent_takes_two_operations_whatever_the_number_of_parameters() -> None:
    for layers in (1, 7):
        model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(layers)))
        batch = (torch.ones(2, 2), torch.tensor([0, 1]))
        with _Count() as count:
            LocalSGD(1, 2, 0.1, weight_decay=0.1, prox_mu=0.1).train(Replica(model), [[batch]])
        assert [name.split(".")[0] for name in count.names[-2:]] == [
            "_foreach_lerp_",
            "_foreach_add_",
        ]
