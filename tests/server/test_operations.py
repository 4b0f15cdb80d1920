"""How many tensor operations it takes to add a group: as on a GPU, where each is a launch."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fednnnn_plugin.client.replica import layout_of, named_tensors
from fednnnn_plugin.models import create_model
from fednnnn_plugin.server.average import UpdateAccumulator
from fednnnn_plugin.server.layout import ModelState


class Counted(TorchDispatchMode):
    """Counts the operations."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += 1
        return func(*args, **(kwargs or {}))


class Group:
    """Clients of a network, each further away than the one before it."""

    def __init__(self, name: str, clients: int) -> None:
        model = create_model(name, 0).double()
        self.layout, self.state = layout_of(model), named_tensors(model)
        served = self.layout.gather(self.state)
        noise = torch.randn(clients, self.layout.size, generator=torch.Generator().manual_seed(1))
        self.vectors = served.vector + noise * torch.logspace(-4, 0, clients).unsqueeze(1)
        self.buffers = {
            name: tensor + torch.arange(clients).view(-1, *[1] * tensor.ndim)
            for name, tensor in served.buffers.items()
        }

    def accumulator(self) -> UpdateAccumulator:
        names = [entry.name for entry in self.layout.entries]
        return UpdateAccumulator(self.state, names, max_client_norm=100.0)

    def part(self, where: slice) -> ModelState:
        buffers = {name: tensor[where] for name, tensor in self.buffers.items()}
        return ModelState(self.vectors[where], buffers)


@pytest.mark.parametrize(("name", "most"), [("nnnn_mnist", 60), ("nnnn_cifar10", 160)])
def test_the_operations_of_adding_a_group_do_not_grow_with_it(name: str, most: int) -> None:
    counts = set()
    for clients in (3, 9):
        group = Group(name, clients)
        group.vectors[1, 7] = torch.nan
        accumulator = group.accumulator()
        with Counted() as counted:
            accepted = accumulator.add_group(group.part(slice(None)), [1.0] * clients)
        assert accepted == [k != 1 for k in range(clients)]
        counts.add(counted.operations)
    assert len(counts) == 1
    assert max(counts) <= most


def test_a_group_adds_up_to_its_clients_one_by_one() -> None:
    group, weights = Group("nnnn_cifar10", 5), [1.0 + 7 * k for k in range(5)]
    together, one_by_one = group.accumulator(), group.accumulator()
    together.add_group(group.part(slice(None)), weights)
    for k, weight in enumerate(weights):
        one_by_one.add_group(group.part(slice(k, k + 1)), [weight])
    first, second = together.finish(), one_by_one.finish()
    torch.testing.assert_close(first.vector, second.vector, rtol=0, atol=1e-10)
    torch.testing.assert_close(first.buffers, second.buffers, rtol=1e-12, atol=0)
    assert first.mean_client_norm == pytest.approx(second.mean_client_norm, rel=1e-12)
    assert first.client_norms == pytest.approx(second.client_norms, rel=1e-12)
