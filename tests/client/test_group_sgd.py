"""Clients side by side: the function of one client after another, whatever they differ in."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fednnnn_plugin.client.group_sgd import GroupSGD
from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.client.replica import Replica
from fednnnn_plugin.client.step_graphs import StepGraphs
from fednnnn_plugin.models import create_model
from fednnnn_plugin.server.accumulator import UpdateAccumulator
from fednnnn_plugin.server.layout import ModelState

SGD = LocalSGD(epochs=2, batch_size=4, learning_rate=0.05, precision="fp64")


class Small(nn.Module):
    """8 × 8 images, and a BatchNorm that one image suffices for."""

    def __init__(self, normalised: bool = True) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(4)
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4) if normalised else nn.Identity()
        self.last = nn.Linear(4 * 36, 10)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.1, generator=generator)

    def forward(self, images: Tensor) -> Tensor:
        return self.last(self.norm(self.conv(images)).relu().flatten(1))


class Clients:
    """Random images, and for each client and epoch an order of its own share of them."""

    def __init__(self, model: nn.Module, sizes: Sequence[int], sgd: LocalSGD, *shape: int) -> None:
        generator, count = torch.Generator().manual_seed(3), sum(sizes)
        shape = (count, *(shape or (1, 8, 8)))
        images = torch.randn(shape, generator=generator, dtype=torch.float64)
        self.images = images.to(sgd.dtype)
        self.labels = torch.randint(10, (count,), generator=generator)
        shares = torch.randperm(count, generator=generator).split(sorted(sizes, reverse=True))
        self.orders: list[list[Tensor]] = []
        for share in shares:
            batches, orders = -(-len(share) // sgd.batch_size), []
            for done in range(0, sgd.steps(batches), batches):
                order = share[torch.randperm(len(share), generator=generator)]
                orders.append(order[: (sgd.steps(batches) - done) * sgd.batch_size])
            self.orders.append(orders)
        self.model, self.sgd = model.to(sgd.dtype), sgd
        self.graphs: StepGraphs | None = None
        replica = Replica(self.model)
        self.layout, self.served = replica.layout, copy.deepcopy(replica.state)
        for name, tensor in self.served.buffers.items():
            if "running_var" in name:  # as a served model has it, not as a new one
                tensor.mul_(1.5)

    def group(self) -> GroupSGD:
        return GroupSGD(self.sgd, self.model, self.images, self.labels, None, self.graphs)

    def together(self) -> ModelState:
        group = self.group()
        group.train(self.served, self.orders[:1])  # nothing of a call is left for the next
        return group.train(self.served, self.orders)

    def one_by_one(self) -> list[ModelState]:
        states, replica = [], Replica(self.model)
        for orders in self.orders:
            replica.load(self.served)
            cuts = [order.split(self.sgd.batch_size) for order in orders]
            epochs = [[(self.images[i], self.labels[i]) for i in cut] for cut in cuts]
            self.sgd.in_round(1).train(replica, epochs)
            states.append(copy.deepcopy(replica.state))
        return states

    def assert_same(self) -> None:
        """Every number of every client within 1e-9, and nobody stayed."""
        before = copy.deepcopy(self.served)
        together, one_by_one = self.together(), self.one_by_one()
        torch.testing.assert_close(self.served.tensors, before.tensors, rtol=0, atol=0)
        assert together.vector.shape == (len(self.orders), self.layout.size)
        assert together.vector.dtype == self.sgd.dtype
        for client, alone in enumerate(one_by_one):
            ours = together.vector[client]
            torch.testing.assert_close(ours, alone.vector, rtol=0, atol=1e-9)
            assert (ours - self.served.vector).abs().max() > 1e-8
            for name, tensor in alone.buffers.items():
                found = together.buffers[name][client]
                assert found.dtype == tensor.dtype
                torch.testing.assert_close(found, tensor, rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "shape"), [("mnist", (1, 28, 28)), ("cifar10", (3, 32, 32))])
def test_group_of_paper_networks_as_one_by_one(name: str, shape: tuple[int, ...]) -> None:
    """1e-9 in float64 after a round; BatchNorm counts each client's own steps."""
    sgd = replace(SGD, batch_size=2, weight_decay=5e-3, prox_mu=0.3)
    Clients(create_model(f"nnnn_{name}", 1), (2, 4, 3), sgd, *shape).assert_same()


def test_batch_normalisation_of_features_as_one_by_one() -> None:
    """Also of a padded batch."""
    layers = nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 10)
    Clients(nn.Sequential(*layers), (6, 7, 3), SGD).assert_same()


# Whole epochs, in which the clients begin together; parts of one, and steps, in which they do not.
WORK = [{"epochs": 1}, {"epochs": 2}, {"epochs": 1.5}, {"epochs": 0.3}]
WORK += [{"epochs": None, "local_steps": 5}]


@settings(max_examples=settings().max_examples // 3)
@given(data=st.data())
def test_group_with_batches_of_every_length(data: st.DataObject) -> None:
    """Whole ones only, a single image, fewer images than a batch, one client, all data at once."""
    sizes = data.draw(st.lists(st.integers(1, 14), min_size=1, max_size=5), label="sizes")
    sgd = replace(
        SGD,
        batch_size=data.draw(st.integers(1, 6) | st.just(1 << 31), label="batch size"),
        **data.draw(st.sampled_from(WORK), label="work"),
        weight_decay=data.draw(st.sampled_from([0.0, 5e-3]), label="decay"),
        prox_mu=data.draw(st.sampled_from([0.0, 0.3]), label="proximal term"),
    )
    Clients(Small(data.draw(st.booleans(), label="BatchNorm")), sizes, sgd).assert_same()


def within_bf16(clients: Clients) -> tuple[Tensor, list[float]]:
    r"""A plain loop of softmax regression from 0, and how far from it bfloat16 may lead a client.

    bfloat16 rounds by up to ``u = 2^-8`` of a value, and no product here is of more than four
    rounded values: ``c = 5 u`` holds those roundings and what they do to each other. A logit is
    then off by ``c ‖W‖ ‖x‖``, a probability by half of that (the softmax's slope), and so a step's
    gradient, with ``r = ‖p - y‖``, by ``c mean_i ‖x_i‖ (r_i + ‖W‖ ‖x_i‖ / 2)``.

    The loss is convex, and a step of ``η ≤ 2 / L``, ``L = mean_i ‖x_i‖² / 2``, leads two models no
    further apart. So the roundings of all steps add up, at models that are ``d`` apart:

    .. math:: d ← d + η c \operatorname{mean}_i ‖x_i‖ (r_i + ‖W‖ ‖x_i‖ / 2 + d ‖x_i‖)
    """
    rate, ends, apart = clients.sgd.learning_rate, [], []
    for epochs in clients.orders:
        w, d = torch.zeros(10, 65), 0.0
        for batch in (batch for order in epochs for batch in order.split(clients.sgd.batch_size)):
            x = torch.cat([clients.images[batch].flatten(1), torch.ones(len(batch), 1)], dim=1)
            off = (x @ w.T).softmax(1) - nn.functional.one_hot(clients.labels[batch], 10)
            length, wrong = x.norm(dim=1), off.norm(dim=1)
            assert rate <= 2 / (length.square().mean() / 2)
            error = length * (wrong + (w.norm() / 2 + d) * length)
            d += rate * 5 * 2**-8 * error.mean().item()
            w -= rate * off.T @ x / len(batch)
        ends.append(torch.cat([w[:, :64].flatten(), w[:, 64]]))
        apart.append(d)
    return torch.stack(ends), apart


def test_bf16_is_within_its_roundings_of_fp32() -> None:
    """S is no further off than the clients are on average, and so are its norm N, and E."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    clients = Clients(model, (20, 17), LocalSGD(epochs=2, batch_size=10, learning_rate=0.01))
    clients.images.abs_()  # so that the steps of a client lead to one side, as a mean does
    clients.labels %= 2
    exact, apart = within_bf16(clients)
    torch.testing.assert_close(clients.together().vector, exact, rtol=0, atol=1e-6)
    clients.sgd = replace(clients.sgd, precision="bf16")
    alone = torch.stack([state.vector for state in clients.one_by_one()])
    for coarse in (clients.together().vector, alone):
        assert coarse.dtype == torch.float32
        assert ((exact - coarse).norm(dim=1) > 1e-4 * exact.norm(dim=1)).all()
        for client, found, bound in zip(exact, coarse, apart, strict=True):
            assert (client - found).norm() <= bound <= 0.06 * client.norm()
        summed = UpdateAccumulator({"w": torch.zeros(650)}, ["w"])
        assert all(summed.add({"w": update}, 1.0) for update in coarse)
        found, mean, error = summed.finish(), exact.mean(0), sum(apart) / len(apart)
        assert (mean - found.mean_update["w"]).norm() <= error <= 0.06 * mean.norm()
        assert abs(mean.norm() - found.mean_update_norm) <= error
        assert abs(exact.norm(dim=1).mean() - found.mean_client_norm) <= error


def test_bf16_normalises_a_padded_batch_as_one_alone() -> None:
    """One step, by a momentum of 0.1: roundings of 2^-8 of values below 2, twice."""
    clients = Clients(Small(), (10, 7), LocalSGD(1, 10, 0.05, precision="bf16"))
    together = clients.together()
    assert together.vector.dtype == torch.float32
    for client, alone in enumerate(clients.one_by_one()):
        for name in ("norm.running_mean", "norm.running_var"):
            found, expected = together.buffers[name][client], alone.buffers[name]
            assert found.dtype == torch.float32
            torch.testing.assert_close(found, expected, rtol=0, atol=0.1 * 2 * 2 * 2**-8)
            assert (found - clients.served.buffers[name]).abs().max() > 0.01


class _Operations(TorchDispatchMode):
    """Counts operations that make a host wait for its device or a device for its host."""

    transfers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        given = [one for a in args for one in (a if isinstance(a, (list, tuple)) else [a])]
        tensors = [a for a in (*given, found) if isinstance(a, Tensor) and a.dim()]
        self.transfers += len({tensor.device.type for tensor in tensors}) > 1
        return found


def test_group_makes_no_transfers_within_a_round() -> None:
    """It steps as often as its largest client, and may be stopped before each step.

    The device is PyTorch's ``meta``, which computes nothing and refuses to be read.
    """
    clients = Clients(Small(), (8, 7, 13, 5), replace(SGD, precision="fp32", prox_mu=0.1))
    clients.model.to("meta")
    clients.images, clients.labels = clients.images.to("meta"), clients.labels.to("meta")
    buffers = {name: tensor.to("meta") for name, tensor in clients.served.buffers.items()}
    served = ModelState(clients.served.vector.to("meta"), buffers)
    group = clients.group()
    staged: list[int] = []
    with _Operations() as operations:
        group.train(served, clients.orders, lambda: staged.append(operations.transfers))
    assert staged == [2] * 8
    assert operations.transfers == 2
    left = iter([1, 2])
    with pytest.raises(StopIteration):
        group.train(served, clients.orders, lambda: next(left))
    with pytest.raises(RuntimeError, match="meta"):
        clients.images.sum().item()
