"""Streaming aggregation: one example by hand, then what a model's state may hold."""

import copy
import math

import pytest
import torch
from torch import Tensor

from fednnnn_plugin.server.average import UpdateAccumulator
from fednnnn_plugin.server.layout import ModelState
from fednnnn_plugin.server.update import LayerNorms, Update

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def aggregate(
    global_state: dict[str, Tensor],
    clients: list[dict[str, Tensor]],
    weights: list[float] | None = None,
    trainable: list[str] | None = None,
) -> Update:
    acc = UpdateAccumulator(global_state, list(global_state) if trainable is None else trainable)
    for client, weight in zip(clients, weights or [1.0] * len(clients), strict=True):
        assert acc.add(client, weight)
    return acc.finish()


def test_average_worked_by_hand() -> None:
    """n_k = 1, 2, 5.

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
    update = aggregate(served, clients, weights=[1.0, 2.0, 5.0], trainable=names[:3])
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


def test_average_of_one_client_has_n_equal_e() -> None:
    """The paper's single-client reference, of the whole and of each module; -Δ cancels it."""
    rows = torch.randn(2, 500, generator=torch.Generator().manual_seed(0))
    start = {"weight": torch.zeros(500), "b.weight": torch.zeros(500)}
    client = dict(zip(start, rows, strict=True))
    update = aggregate(start, [client], weights=[3.7])
    e = pytest.approx(rows.double().norm().item(), rel=1e-12)
    assert (update.mean_client_norm, [*update.layers]) == (e, ["", "b"])
    for norms in (update, *update.layers.values()):
        assert norms.mean_update_norm == pytest.approx(norms.mean_client_norm, rel=1e-8)
    update = aggregate(start, [client, {name: -x for name, x in client.items()}], [0.3, 0.3])
    assert (update.mean_update_norm, update.mean_client_norm) == (0.0, e)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str
)
def test_average_keeps_dtypes_and_device(dtype: torch.dtype, device: str) -> None:
    """A half-precision S would round to nothing beside its model: it is float32 at least."""
    state = {name: torch.ones(3, dtype=dtype, device=device) for name in ("w", "mean")}
    clients = [{"w": state["w"] * w, "mean": state["mean"] * b} for w, b in ((3, 2), (4, 1.5))]
    update = aggregate(state, clients, trainable=["w"])
    s, mean = update.mean_update["w"], update.buffers["mean"]
    assert (s.dtype, mean.dtype) == (torch.promote_types(dtype, torch.float32), dtype)
    assert s.device.type == mean.device.type == device
    assert (s.tolist(), mean.tolist()) == ([2.5] * 3, [1.75] * 3)


def test_average_ignores_memory_layout() -> None:
    generator = torch.Generator().manual_seed(5)
    plain = torch.randn(4, 6, 5, 3, 2, generator=generator)
    found = []
    for layout in (
        lambda x: x,
        lambda x: x.to(memory_format=torch.channels_last),
        lambda x: x.transpose(0, 3).contiguous().transpose(0, 3),
        lambda x: torch.stack([x, x.neg()], dim=-1)[..., 0],
        lambda x: x.clone().requires_grad_() * 1,
    ):
        states = [{"w": layout(x), "b": layout(x)} for x in plain]
        found.append(aggregate(states[0], states[1:], trainable=["w"]))
    for other in found[1:]:
        assert torch.equal(found[0].vector, other.vector)
        assert torch.equal(found[0].buffers["b"], other.buffers["b"])
        assert found[0].mean_client_norm == other.mean_client_norm


def test_group_adds_up_to_its_clients() -> None:
    """Each further away than the one before it; the second is not finite."""
    served = {"w": torch.randn(300, generator=torch.Generator().manual_seed(1)).double()}
    served |= {"mean": torch.ones(3), "count": torch.tensor(2)}
    noise = torch.randn(5, 300, generator=torch.Generator().manual_seed(2))
    vectors = served["w"] + noise * torch.logspace(-4, 0, 5).unsqueeze(1)
    vectors[1, 7] = torch.nan
    group = ModelState(
        vectors,
        {name: torch.stack([served[name] + k for k in range(5)]) for name in ("mean", "count")},
    )
    weights = [1.0 + 7 * k for k in range(5)]
    updates = []
    for parts in ([slice(0, 5)], [slice(k, k + 1) for k in range(5)]):
        acc, accepted = UpdateAccumulator(served, ["w"], 100.0), []
        for part in parts:
            buffers = {name: tensor[part] for name, tensor in group.buffers.items()}
            accepted += acc.add_group(ModelState(vectors[part], buffers), weights[part])
        assert accepted == [True, False, True, True, True]
        updates.append(acc.finish())
    first, second = updates
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
