"""Streaming aggregation: one example by hand, then what a model's state may hold."""

import copy
import math

import pytest
import torch
from torch import Tensor

from fednnnn_plugin.server.accumulator import UpdateAccumulator
from fednnnn_plugin.server.layout import ModelState
from fednnnn_plugin.server.update import LayerNorms

from .test_average_exact import bits


def test_average_worked_by_hand() -> None:
    """n_k = 1, 2, 5; clients may have the entries in another order.

    fc: weight Δ = (6, 0), (0, 3), (0, 0); bias Δ = 8, 4, 0: norms 10, 5, 0;
    S = (6/8, 6/8, (8 + 8)/8), N² = 9/16 + 9/16 + 4, E = (10 + 10 + 0)/8.
    out.proj: Δ = 0, 12, 2: S = (24 + 10)/8 = 4.25, E = 4.25. Whole norms: 10, 13, 2.
    """
    names = ["fc.weight", "fc.bias", "out.proj.weight"]
    names += ["bn.running_var", "bn.num_batches_tracked", "ready"]
    served, *clients = (
        dict(zip(names, map(torch.tensor, values), strict=True))
        for values in (
            ([[1.0, 1.0]], [1.0], 5.0, [1.0, 1.0], 3, [False, False]),
            ([[7.0, 1.0]], [9.0], 5.0, [8.0, 0.0], 7, [True, False]),
            ([[1.0, 4.0]], [5.0], 17.0, [4.0, 0.5], 9, [False, False]),
            ([[1.0, 1.0]], [1.0], 7.0, [0.0, 0.25], 4, [False, False]),
        )
    )
    acc = UpdateAccumulator(served, reversed(names[:3]))
    for client, weight in zip(clients, (1.0, 2.0, 5.0), strict=True):
        assert acc.add(dict(reversed(client.items())), weight)
    update = acc.finish()
    assert [*update.mean_update] == names[:3]
    assert update.mean_update["fc.weight"].tolist() == [[0.75, 0.75]]
    assert update.mean_update["fc.bias"].tolist() == [2.0]
    assert update.mean_update["out.proj.weight"].item() == 4.25
    assert update.layers == {
        "fc": LayerNorms(pytest.approx(math.sqrt(5.125), rel=1e-15), 2.5),
        "out.proj": LayerNorms(4.25, 4.25),
    }
    assert update.mean_update_norm == pytest.approx(math.sqrt(5.125 + 4.25**2), rel=1e-15)
    assert update.mean_client_norm == (10 * 1 + 13 * 2 + 2 * 5) / 8
    assert update.mean_client_square == (100 * 1 + 169 * 2 + 4 * 5) / 8
    assert update.orthogonal_norm == pytest.approx(math.hypot(10 * 1, 13 * 2, 2 * 5) / 8)
    assert update.client_norms == (2.0, 10.0, 13.0)
    assert list(update.buffers) == names[3:]
    assert update.buffers["bn.running_var"].tolist() == [2.0, 0.28125]
    assert update.buffers["bn.num_batches_tracked"].item() == 9
    assert update.buffers["bn.num_batches_tracked"].dtype == torch.int64
    assert update.buffers["ready"].tolist() == [True, False]
    assert update.buffers["ready"].dtype == torch.bool


def test_average_ignores_memory_layout() -> None:
    plain = torch.randn(4, 6, 5, 3, 2, generator=torch.Generator().manual_seed(5))
    found = set()
    for layout in (
        lambda x: x,
        lambda x: x.to(memory_format=torch.channels_last),
        lambda x: x.transpose(0, 3).contiguous().transpose(0, 3),
        lambda x: torch.stack([x, x.neg()], dim=-1)[..., 0],
        lambda x: x.clone().requires_grad_() * 1,
    ):
        served, *clients = ({"w": layout(x), "b": layout(x)} for x in plain)
        acc = UpdateAccumulator(served, ["w"])
        for client in clients:
            acc.add(client, 1.0)
        found.add(bits(acc.finish()))
    assert len(found) == 1


def test_group_adds_up_to_its_clients() -> None:
    """Each further away than the one before it; the second is not finite."""
    served = {"w": torch.randn(300, generator=torch.Generator().manual_seed(1)).double()}
    served |= {"mean": torch.ones(3), "count": torch.tensor(2)}
    noise = torch.randn(5, 300, generator=torch.Generator().manual_seed(2))
    vectors = noise.double() * torch.logspace(-4, 0, 5).unsqueeze(1)
    vectors[1, 7] = torch.nan
    buffers = {n: torch.stack([served[n] + k for k in range(5)]) for n in ("mean", "count")}
    weights = [1.0 + 7 * k for k in range(5)]
    updates = []
    for size in (5, 1):
        acc, accepted = UpdateAccumulator(served, ["w"], 1.0), []
        for part in (slice(k, k + size) for k in range(0, 5, size)):
            group = ModelState(vectors[part], {name: x[part] for name, x in buffers.items()})
            accepted += acc.add_group(group, weights[part])
        assert accepted == [True, False, True, True, True]
        updates.append(acc.finish())
    first, second = updates
    assert first.clipped == second.clipped == 3
    torch.testing.assert_close(first.vector, second.vector, rtol=0, atol=1e-10)
    torch.testing.assert_close(first.buffers, second.buffers, rtol=1e-12, atol=0)
    assert first.mean_client_norm == pytest.approx(second.mean_client_norm, rel=1e-12)
    assert first.client_norms == pytest.approx(second.client_norms, rel=1e-12)


def test_average_leaves_its_inputs_alone() -> None:
    """Nor does a merge change the other accumulator."""

    def state(x: float) -> dict[str, Tensor]:
        return {"w": torch.full((2,), x), "mean": torch.full((3,), x), "count": torch.tensor(4)}

    given = [state(x) for x in (0.0, 1.0, 3.0, math.nan)]
    before = copy.deepcopy(given)
    acc, empty = (UpdateAccumulator(given[0], ["w"]) for _ in range(2))
    assert [acc.add(client, 2.0) for client in given[1:]] == [True, True, False]
    update = acc.finish()
    for tensor in (*update.mean_update.values(), *update.buffers.values()):
        tensor.fill_(77)  # the result is no view of anything that went in, or of the partial sums
    empty.merge(acc)
    empty.add(state(8.0), 2.0)
    torch.testing.assert_close(given, before, rtol=0, atol=0, equal_nan=True)
    for each, mean in ((acc, 2.0), (empty, 4.0)):
        again = each.finish()
        assert again.mean_update["w"].tolist() == [mean] * 2
        assert (again.buffers["mean"].tolist(), again.buffers["count"].item()) == ([mean] * 3, 4)


def test_clients_may_be_added_in_inference_mode() -> None:
    """The sum goes on, and ends, outside of it."""
    served = {"w": torch.zeros(3), "running_mean": torch.zeros(2)}
    clients = [{name: torch.rand_like(x) for name, x in served.items()} for _ in range(2)]
    acc, plain = (UpdateAccumulator(served, ["w"]) for _ in range(2))
    with torch.inference_mode():
        assert acc.add(clients[0], 1.0)
    assert acc.add(clients[1], 1.0)
    for client in clients:
        plain.add(client, 1.0)
    assert bits(acc.finish()) == bits(plain.finish())
