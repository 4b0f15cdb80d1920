"""Clients side by side: the function of one client after another, whatever they differ in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fednnnn_plugin.client.batched_sgd import BatchedSGD
from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.engine.state import named_tensors
from fednnnn_plugin.models import create_model

SHAPES = {"nnnn_mnist": (1, 28, 28), "nnnn_cifar10": (3, 32, 32), "nnnn_digits": (1, 8, 8)}
NETWORKS = sorted(SHAPES)
SGD = LocalSGD(epochs=2, batch_size=4, learning_rate=0.05, precision="fp64")
State = dict[str, Tensor]


class Clients:
    """Random images, and for each client and epoch an order of its own share of them."""

    def __init__(self, network: str, sizes: Sequence[int], sgd: LocalSGD) -> None:
        generator = torch.Generator().manual_seed(3)
        count = sum(sizes)
        self.images = torch.randn(
            count, *SHAPES[network], generator=generator, dtype=torch.float64
        ).to(sgd.dtype)
        self.labels = torch.randint(10, (count,), generator=generator)
        self.orders = [
            [share[torch.randperm(len(share), generator=generator)] for _ in range(sgd.epochs)]
            for share in torch.randperm(count, generator=generator).split(list(sizes))
        ]
        self.model = create_model(network, 1).to(sgd.dtype)
        self.served = {k: v.clone() for k, v in named_tensors(self.model).items()}
        for name, tensor in self.served.items():
            if "running_var" in name:  # as a served model has it, not as a new one
                tensor.mul_(1.5)
        self.sgd = sgd

    def together(self, served: State | None = None) -> list[State]:
        batched = BatchedSGD(self.sgd, self.model, self.images, self.labels)
        return list(batched.train(served or self.served, self.orders))

    def one_by_one(self) -> list[State]:
        states = []
        for orders in self.orders:
            for name, tensor in named_tensors(self.model).items():
                tensor.copy_(self.served[name])
            self.sgd.train(
                self.model,
                [
                    [(self.images[i], self.labels[i]) for i in order.split(self.sgd.batch_size)]
                    for order in orders
                ],
            )
            states.append({k: v.clone() for k, v in named_tensors(self.model).items()})
        return states


def assert_same(clients: Clients, tolerance: float) -> None:
    """Every tensor of every client within the tolerance, counts exactly, and nobody stayed."""
    together, one_by_one = clients.together(), clients.one_by_one()
    assert len(together) == len(one_by_one) == len(clients.orders)
    for ours, theirs in zip(together, one_by_one, strict=True):
        assert ours.keys() == theirs.keys() == clients.served.keys()
        for name, tensor in ours.items():
            assert tensor.dtype == theirs[name].dtype == clients.served[name].dtype
            torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=tolerance)
            if not tensor.is_floating_point():
                assert tensor.tolist() == theirs[name].tolist() != clients.served[name].tolist()
        moved = max((ours[k] - v).abs().max().item() for k, v in clients.served.items())
        assert moved > 10 * tolerance


def test_two_clients_worked_by_hand() -> None:
    """Logits (w₀x, w₁x), η = 0.5, λ = 0.25, from (0, 0); x = 2, label 0, and x = -4, label 1.

    One step: p = (½, ½), ∇ℓ = x (p - onehot) = (-1, 1) and (-2, 2): w = (½, -½) and (1, -1).
    """
    model = nn.Linear(1, 2, bias=False, dtype=torch.float64)
    images = torch.tensor([[2.0], [-4.0]], dtype=torch.float64)
    served = {"weight": torch.zeros(2, 1, dtype=torch.float64)}
    sgd = LocalSGD(1, 1, 0.5, weight_decay=0.25, precision="fp64")
    orders = [[torch.tensor([0])], [torch.tensor([1])]]
    batched = BatchedSGD(sgd, model, images, torch.tensor([0, 1]))
    first, second = batched.train(served, orders)
    assert first["weight"].flatten().tolist() == [0.5, -0.5]
    assert second["weight"].flatten().tolist() == [1.0, -1.0]
    assert served["weight"].tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(
    ("sizes", "regularised"),
    [((3, 3), {}), ((4, 3, 3, 4), {"weight_decay": 5e-3, "prox_mu": 0.3})],
    ids=["equal and plain", "unequal with decay and prox"],
)
def test_the_paper_networks_as_one_by_one(
    network: str, sizes: tuple[int, ...], regularised: dict[str, Any]
) -> None:
    """1e-9 in float64 after a round; BatchNorm counts each client's own steps."""
    assert_same(Clients(network, sizes, replace(SGD, batch_size=2, **regularised)), 1e-9)


@pytest.mark.parametrize(
    "sizes",
    [(4, 4), (8, 8, 8), (1, 1), (1, 3, 2), (4, 1), (12, 9, 10, 9, 12), (3,)],
    ids=str,
)
@pytest.mark.parametrize("network", ["nnnn_digits", "normalised"])
def test_batches_of_every_length(network: str, sizes: tuple[int, ...]) -> None:
    """Whole ones only, a single image, fewer images than a batch, one client."""
    clients = Clients("nnnn_digits", sizes, SGD)
    if network == "normalised":
        clients.model = Normalised()
        clients.served = {k: v.clone() for k, v in named_tensors(clients.model).items()}
    assert_same(clients, 1e-9)


class Normalised(nn.Module):
    """Small, in float64, with a BatchNorm that one image suffices for."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(4)
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.last = nn.Linear(4 * 36, 10)
        self.double()
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.1, generator=generator)

    def forward(self, images: Tensor) -> Tensor:
        return self.last(self.norm(self.conv(images)).relu().flatten(1))


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_any_sizes_of_equal_steps(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 6), label="batch size")
    steps = data.draw(st.integers(1, 3), label="steps")
    lengths = st.integers((steps - 1) * size + 1, steps * size)
    sizes = data.draw(st.lists(lengths, min_size=1, max_size=5), label="sizes")
    sgd = replace(SGD, batch_size=size, epochs=data.draw(st.integers(1, 2), label="epochs"))
    assert_same(Clients("nnnn_digits", sizes, sgd), 1e-9)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_one_step_in_single_precision(network: str, precision: str) -> None:
    sgd = LocalSGD(epochs=1, batch_size=10, learning_rate=0.05, precision=precision)
    assert_same(Clients(network, (6, 8), sgd), 1e-4)


def test_each_client_has_its_own_statistics() -> None:
    """Momentum 0.1 on one batch: running mean 0.1 times the batch's own, from 0."""
    clients = Clients("nnnn_digits", (4, 4), replace(SGD, epochs=1))
    clients.model = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(64, 10)).double()
    clients.served = {k: v.clone() for k, v in named_tensors(clients.model).items()}
    states = clients.together()
    for state, (order,) in zip(states, clients.orders, strict=True):
        mean = clients.images[order].mean().item()
        assert state["0.running_mean"].tolist() == pytest.approx([0.1 * mean], rel=1e-12)
        assert state["0.num_batches_tracked"].item() == 1
    assert clients.served["0.running_mean"].tolist() == [0.0]
    assert clients.served["0.num_batches_tracked"].item() == 0


@pytest.mark.parametrize("length", [1, 4, 5, 11, 12])
def test_the_number_of_steps(length: int) -> None:
    """⌈n/B⌉ an epoch, exactly, told by BatchNorm's own count."""
    clients = Clients("nnnn_digits", (length, length), replace(SGD, epochs=3))
    clients.model = Normalised()
    served = {k: v.clone() for k, v in named_tensors(clients.model).items()}
    for state in clients.together(served):
        assert state["norm.num_batches_tracked"].item() == 3 * math.ceil(length / 4)


def test_clients_of_unequal_steps_are_refused() -> None:
    with pytest.raises(ValueError, match=r"clients of \[4, 5\] samples, batch size 4: unequal"):
        Clients("nnnn_digits", (4, 5), SGD).together()


def test_bf16_computes_coarsely_and_keeps_weights_in_float32() -> None:
    sgd = LocalSGD(epochs=1, batch_size=10, learning_rate=0.05)
    exact = Clients("nnnn_mnist", (20, 17), sgd).together()
    coarse = Clients("nnnn_mnist", (20, 17), replace(sgd, precision="bf16")).together()
    served = Clients("nnnn_mnist", (20, 17), sgd).served
    for full, rounded in zip(exact, coarse, strict=True):
        for name, tensor in full.items():
            assert rounded[name].dtype == torch.float32
            assert not torch.equal(tensor, rounded[name])
            assert (tensor - rounded[name]).norm() < 0.2 * (tensor - served[name]).norm()


def test_frozen_parameters_stay() -> None:
    clients = Clients("nnnn_digits", (4, 4), replace(SGD, weight_decay=0.1, prox_mu=0.1))
    clients.model.conv1.requires_grad_(False)
    for state in clients.together():
        assert torch.equal(state["conv1.weight"], clients.served["conv1.weight"])
        assert not torch.equal(state["conv2.weight"], clients.served["conv2.weight"])


def test_neither_the_served_state_nor_the_model_changes() -> None:
    clients = Clients("nnnn_digits", (4, 4), SGD)
    live = named_tensors(clients.model)  # as the engine gives it: the model's own tensors
    before = {name: tensor.clone() for name, tensor in live.items()}
    clients.together(live)
    for name, tensor in named_tensors(clients.model).items():
        assert torch.equal(tensor, before[name])
        assert tensor.data_ptr() == live[name].data_ptr()


def test_it_can_be_stopped_before_an_epoch() -> None:
    class Stop(Exception):
        pass

    clients = Clients("nnnn_digits", (4, 4), replace(SGD, epochs=5))
    begun: list[int] = []

    def before_epoch() -> None:
        begun.append(len(begun))
        if len(begun) == 3:
            raise Stop

    batched = BatchedSGD(clients.sgd, clients.model, clients.images, clients.labels)
    with pytest.raises(Stop):
        list(batched.train(clients.served, clients.orders, before_epoch))
    assert begun == [0, 1, 2]


class _Transfers(TorchDispatchMode):
    """Counts what would make a host wait for its device, or a device for its host."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        given = [one for a in args for one in (a if isinstance(a, (list, tuple)) else [a])]
        tensors = [a for a in (*given, found) if isinstance(a, Tensor) and a.dim()]
        if len({tensor.device.type for tensor in tensors}) > 1:
            self.names.append(func.__name__)
        return found


@pytest.mark.parametrize("network", ["nnnn_mnist", "nnnn_cifar10"])
def test_host_and_device_do_not_wait_for_each_other_within_a_round(network: str) -> None:
    """The device is PyTorch's ``meta``, which computes nothing and refuses to be read."""
    clients = Clients(network, (8, 7, 7, 5), replace(SGD, precision="fp32", prox_mu=0.1))
    batched = BatchedSGD(
        clients.sgd,
        clients.model.to("meta"),
        clients.images.to("meta"),
        clients.labels.to("meta"),
    )
    served = {name: tensor.to("meta") for name, tensor in clients.served.items()}
    with _Transfers() as transfers:
        staged: list[int] = []
        list(batched.train(served, clients.orders, lambda: staged.append(len(transfers.names))))
    assert 0 < staged[0] == staged[1] == len(transfers.names)
    with pytest.raises(RuntimeError, match="meta"):
        clients.images.to("meta").sum().item()
