"""Local training: two steps by hand, then against torch.optim.SGD."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fednnnn_plugin.client.correction import Correction
from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.client.replica import Replica


def test_sgd_steps_worked_by_hand() -> None:
    """Logits (w₀x, w₁x) with x = 2, η = 0.5, λ = 0.25, μ = 0.75, from w_t = (0, 0).

    Step 1, label 0: p = (½, ½), ∇ℓ = x (p - (1, 0)) = (-1, 1); w = (½, -½).
    Step 2, label 1: p₀ = 1/(1 + e^-2), ∇ℓ = (2 p₀, -2 p₀); decay and proximal term add
    (λ + μ) w = (½, -½); w = (½ - ½ (2 p₀ + ½), …) = (¼ - p₀, p₀ - ¼).
    """
    model = nn.Linear(1, 2, bias=False, dtype=torch.float64)
    nn.init.zeros_(model.eval().weight)
    x = torch.tensor([[2.0]], dtype=torch.float64)
    sgd = LocalSGD(2, 1, 0.5, weight_decay=0.25, prox_mu=0.75, precision="fp64")
    sgd.train(Replica(model), [[(x, torch.tensor([0]))], [(x, torch.tensor([1]))]])
    p0 = 1 / (1 + math.exp(-2))
    assert model.weight.flatten().tolist() == pytest.approx([0.25 - p0, p0 - 0.25], rel=1e-14)
    assert model.training
    assert model.weight.grad is None


def test_sgd_without_gradients_moves_nothing() -> None:
    model, elsewhere = nn.Linear(1, 2), torch.zeros(1, 2, requires_grad=True)
    before = [parameter.clone() for parameter in model.parameters()]
    model.register_forward_hook(lambda *_: elsewhere)
    LocalSGD(1, 1, 0.5).train(Replica(model), [[(torch.ones(1, 1), torch.tensor([0]))]])
    assert all(map(torch.equal, model.parameters(), before))


@pytest.mark.parametrize("optimizer", [None, torch.optim.SGD])
def test_correction_moves_what_the_loss_does_not_reach(optimizer: Any) -> None:
    """Two steps of η 0.5: of h alone, where the gradient is 0."""
    model = nn.Linear(1, 2)
    model.unused = nn.Parameter(torch.tensor([1.0, 2.0]))
    replica, batch = Replica(model), (torch.zeros(1, 1), torch.tensor([0]))
    correction = torch.arange(6.0)
    sgd = LocalSGD(2, 1, 0.5, optimizer=optimizer)
    sgd.train(replica, [[batch], [batch]], correction=Correction(correction.unsqueeze(0)))
    place = list(dict(model.named_parameters())).index("unused")
    start = sum(parameter.numel() for parameter in list(model.parameters())[:place])
    moved = torch.tensor([1.0, 2.0]) - correction[start : start + 2]
    torch.testing.assert_close(model.unused.detach(), moved)


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


@pytest.mark.parametrize(("weight_decay", "prox_mu"), [(0.5, 0.0), (0.25, 0.3)])
def test_sgd_is_torch_s_with_a_proximal_term(weight_decay: float, prox_mu: float) -> None:
    """What the loss does not reach stays as it is, decay or not."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(23, 3, generator=generator, dtype=torch.float64)
    labels = torch.randint(2, (23,), generator=generator)
    epochs = [[(images[i], labels[i]) for i in torch.arange(23).split(5)]] * 3
    model, reference = _Odd().double(), _Odd().double()
    trained = [p for p in reference.parameters() if p.requires_grad]
    start = [p.detach().clone() for p in trained]
    optimizer = torch.optim.SGD(trained, lr=0.1, weight_decay=weight_decay)
    for inputs, expected in (batch for epoch in epochs for batch in epoch):
        optimizer.zero_grad()
        far = [(p - anchor).square().sum() for p, anchor in zip(trained[:-1], start, strict=False)]
        (F.cross_entropy(reference(inputs), expected) + prox_mu / 2 * sum(far)).backward()
        optimizer.step()
    sgd = LocalSGD(3, 5, 0.1, weight_decay=weight_decay, prox_mu=prox_mu, precision="fp64")
    sgd.train(Replica(model), epochs)
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    assert max((p - a).abs().max() for p, a in zip(trained, start, strict=True)) > 0.01


@pytest.mark.parametrize(
    ("epochs", "batches", "steps"),
    [(2, 7, 14), (0.5, 5, 3), (0.1, 30, 3), (1.1, 10, 11), (0.01, 1, 1), (2.0, 3, 6)],
)
def test_steps_of_parts_of_an_epoch(epochs: float, batches: int, steps: int) -> None:
    """Rounded up, by the decimal as it is written: 1.1 * 10 is 11.000000000000002 in floats."""
    assert LocalSGD(epochs, 5, 0.1).steps(batches) == steps
    assert LocalSGD(None, 5, 0.1, local_steps=4).steps(batches) == 4
