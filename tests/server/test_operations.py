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


@pytest.mark.parametrize(("name", "most"), [("nnnn_mnist", 60), ("nnnn_cifar10", 160)])
def test_the_operations_of_adding_a_group_do_not_grow_with_it(name: str, most: int) -> None:
    model = create_model(name, 0)
    layout, state = layout_of(model), named_tensors(model)
    served = layout.gather(state)
    counts = []
    for clients in (3, 4, 9):
        noise = torch.randn(clients, layout.size, generator=torch.Generator().manual_seed(1))
        vectors = served.vector + noise * torch.logspace(-4, 0, clients).unsqueeze(1)
        vectors[1, 7] = torch.nan
        buffers = {n: t.expand(clients, *t.shape).clone() for n, t in served.buffers.items()}
        accumulator = UpdateAccumulator(state, [entry.name for entry in layout.entries])
        with Counted() as counted:
            accepted = accumulator.add_group(ModelState(vectors, buffers), [1.0] * clients)
        assert accepted == [k != 1 for k in range(clients)]
        counts.append(counted.operations)
    assert len(set(counts)) == 1
    assert counts[0] <= most


@pytest.mark.parametrize("count", [2, 5])
def test_a_group_adds_up_to_its_clients_one_by_one(count: int) -> None:
    model = create_model("nnnn_cifar10", 0).double()
    layout, state = layout_of(model), named_tensors(model)
    served, trained = layout.gather(state), [entry.name for entry in layout.entries]
    generator = torch.Generator().manual_seed(count)
    vectors = served.vector + 0.1 * torch.randn(
        count, layout.size, generator=generator, dtype=torch.float64
    )
    buffers = {
        name: tensor.expand(count, *tensor.shape) + torch.arange(count).view(-1, *[1] * tensor.ndim)
        for name, tensor in served.buffers.items()
    }
    weights = [1.0 + 7 * k for k in range(count)]
    together = UpdateAccumulator(state, trained, max_client_norm=100.0)
    together.add_group(ModelState(vectors, buffers), weights)
    one_by_one = UpdateAccumulator(state, trained, max_client_norm=100.0)
    for k, weight in enumerate(weights):
        alone = ModelState(vectors[k], {name: tensor[k] for name, tensor in buffers.items()})
        one_by_one.add_group(alone.as_group(), [weight])
    first, second = together.finish(), one_by_one.finish()
    torch.testing.assert_close(first.vector, second.vector, rtol=0, atol=1e-10)
    torch.testing.assert_close(first.buffers, second.buffers, rtol=1e-12, atol=0)
    assert first.mean_client_norm == pytest.approx(second.mean_client_norm, rel=1e-12)
    assert first.client_norms == pytest.approx(second.client_norms, rel=1e-12)
