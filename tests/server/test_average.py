"""Streaming aggregation: one example by hand, then what a model's state may hold."""

import copy
import math

import pytest
import torch
from torch import Tensor

from fednnnn_plugin.client.replica import layout_of, named_tensors
from fednnnn_plugin.models import create_model
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
        assert acc.add(client, weight) is True
    return acc.finish()


def test_average_of_two_clients_by_hand() -> None:
    """w_t = (1, 2); Δ = (0, 25), (24, 7): S = (12, 16), N = 20, E = (25 + 25) / 2."""
    update = aggregate(
        {"w": torch.tensor([1.0, 2.0])},
        [{"w": torch.tensor([1.0, 27.0])}, {"w": torch.tensor([25.0, 9.0])}],
    )
    assert update.mean_update["w"].tolist() == [12.0, 16.0]
    assert update.mean_update_norm == 20.0
    assert update.mean_client_norm == 25.0
    assert update.layers == {"": LayerNorms(20.0, 25.0)}
    assert update.buffers == {}
    assert (update.clients, update.rejected) == (2, 0)
    assert update.mean_client_square == 625.0
    assert update.orthogonal_norm == pytest.approx(math.sqrt(2 * 12.5**2))
    assert update.client_norms == (25.0, 25.0, 25.0)


def test_average_with_weights_layers_buffers_by_hand() -> None:
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


def test_average_of_one_client_has_n_equal_to_e() -> None:
    """The paper's single-client reference, of the whole and of each module; -Δ cancels it."""
    rows = torch.randn(2, 500, generator=torch.Generator().manual_seed(0))
    state = {f"{module}.weight": torch.zeros(500) for module in ("a", "b")}
    client = dict(zip(state, rows, strict=True))
    update = aggregate(state, [client], weights=[3.7])
    e = pytest.approx(rows.double().norm().item(), rel=1e-12)
    assert update.mean_client_norm == e
    for norms in (update, *update.layers.values()):
        assert norms.mean_update_norm == pytest.approx(norms.mean_client_norm, rel=1e-8)
    update = aggregate(state, [client, {name: -x for name, x in client.items()}], [0.3, 0.3])
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


def test_average_of_half_precision_differs_in_float32() -> None:
    """1 + 2^-10 less 2^-12 has more bits than float16."""
    state = {"w": torch.tensor([2.0**-12], dtype=torch.float16)}
    update = aggregate(state, [{"w": torch.tensor([1 + 2.0**-10], dtype=torch.float16)}])
    assert update.mean_update["w"].item() == 1 + 2.0**-10 - 2.0**-12


LAYOUTS = {
    "channels_last": lambda x: x.to(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(0, 3).contiguous().transpose(0, 3),
    "strided": lambda x: torch.stack([x, x.neg()], dim=-1)[..., 0],
    "with a gradient": lambda x: x.clone().requires_grad_() * 1,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_average_ignores_memory_layout(layout: str) -> None:
    generator = torch.Generator().manual_seed(5)
    plain = [{"w": x, "b": x} for x in torch.randn(4, 6, 5, 3, 2, generator=generator)]
    other = [{name: LAYOUTS[layout](x) for name, x in state.items()} for state in plain]
    first, second = (aggregate(states[0], states[1:], trainable=["w"]) for states in (plain, other))
    assert torch.equal(first.vector, second.vector)
    assert torch.equal(first.buffers["b"], second.buffers["b"])
    assert first.mean_client_norm == second.mean_client_norm


@pytest.mark.slow
def test_group_adds_up_to_its_clients() -> None:
    """Clients of a network, each further away than the one before it; the second is not finite."""
    model = create_model("nnnn_cifar10", 0).double()
    layout, state = layout_of(model), named_tensors(model)
    served, weights = layout.gather(state), [1.0 + 7 * k for k in range(5)]
    noise = torch.randn(5, layout.size, generator=torch.Generator().manual_seed(1))
    vectors = served.vector + noise * torch.logspace(-4, 0, 5).unsqueeze(1)
    vectors[1, 7] = torch.nan
    buffers = {
        name: tensor + torch.arange(5).view(-1, *[1] * tensor.ndim)
        for name, tensor in served.buffers.items()
    }
    together, one_by_one = (
        UpdateAccumulator(state, [entry.name for entry in layout.entries], max_client_norm=100.0)
        for _ in range(2)
    )
    accepted = together.add_group(ModelState(vectors, buffers), weights)
    assert accepted == [True, False, True, True, True]
    for k, weight in enumerate(weights):
        alone = {name: tensor[k : k + 1] for name, tensor in buffers.items()}
        found = one_by_one.add_group(ModelState(vectors[k : k + 1], alone), [weight])
        assert found == [accepted[k]]
    first, second = together.finish(), one_by_one.finish()
    torch.testing.assert_close(first.vector, second.vector, rtol=0, atol=1e-10)
    torch.testing.assert_close(first.buffers, second.buffers, rtol=1e-12, atol=0)
    assert first.mean_client_norm == pytest.approx(second.mean_client_norm, rel=1e-12)
    assert first.client_norms == pytest.approx(second.client_norms, rel=1e-12)


def test_average_leaves_its_inputs_alone() -> None:
    def state(x: float) -> dict[str, Tensor]:
        return {"w": torch.full((2,), x), "mean": torch.full((3,), x), "count": torch.tensor(4)}

    given = [state(x) for x in (0.0, 1.0, 3.0, math.nan)]
    before = copy.deepcopy(given)
    acc = UpdateAccumulator(given[0], ["w"])
    assert [acc.add(client, 2.0) for client in given[1:]] == [True, True, False]
    update = acc.finish()
    for tensor in (*update.mean_update.values(), *update.buffers.values()):
        tensor.fill_(77)  # the result is no view of anything that went in, or of the partial sums
    again = acc.finish()
    torch.testing.assert_close(given, before, rtol=0, atol=0, equal_nan=True)
    assert again.mean_update["w"].tolist() == [2.0, 2.0]
    assert (again.buffers["mean"].tolist(), again.buffers["count"].item()) == ([2.0] * 3, 4)


def test_merge_changes_one_accumulator_only() -> None:
    state = {"w": torch.zeros(1), "count": torch.tensor(-9)}
    left, right, empty = (UpdateAccumulator(state, ["w"]) for _ in range(3))
    for acc, x in ((left, 1), (right, 5)):
        acc.add({"w": torch.ones(1) * x, "count": torch.tensor(-x)}, 1.0)
    left.merge(right)
    left.merge(empty)
    empty.merge(right)
    for acc, mean, count in ((left, 3.0, -1), (right, 5.0, -5), (empty, 5.0, -5)):
        update = acc.finish()
        assert (update.mean_update["w"].item(), update.buffers["count"].item()) == (mean, count)
