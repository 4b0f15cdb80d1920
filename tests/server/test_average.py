"""Streaming aggregation: one example by hand, then what a model's state may hold."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.server.average import UpdateAccumulator
from fednnnn_plugin.server.update import LayerNorms, Update

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


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


def test_two_clients_worked_by_hand() -> None:
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
    assert update.client_norms == (25.0, 25.0, 25.0)


def test_three_weighted_clients_with_layers_and_buffers_worked_by_hand() -> None:
    """n_k = 1, 2, 5.

    fc: weight Δ = (6, 0), (0, 3), (0, 0); bias Δ = 8, 4, 0: norms 10, 5, 0;
    S = (6/8, 6/8, (8 + 8)/8), N² = 9/16 + 9/16 + 4, E = (10 + 10 + 0)/8.
    out.proj: Δ = 0, 12, 2: S = (24 + 10)/8 = 4.25, E = 4.25. Whole norms: 10, 13, 2.
    """
    state = {
        "fc.weight": torch.tensor([[1.0, 1.0]]),
        "fc.bias": torch.tensor([1.0]),
        "out.proj.weight": torch.tensor(5.0),
        "bn.running_var": torch.tensor([1.0, 1.0]),
        "bn.num_batches_tracked": torch.tensor(3),
        "ready": torch.tensor([False, False]),
    }

    def client(weight, bias, proj, variance, batches, ready) -> dict[str, Tensor]:
        values = [[weight], [bias], proj, variance, batches, ready]
        return {name: torch.tensor(v) for name, v in zip(state, values, strict=True)}

    update = aggregate(
        state,
        [
            client([7.0, 1.0], 9.0, 5.0, [8.0, 0.0], 7, [True, False]),
            client([1.0, 4.0], 5.0, 17.0, [4.0, 0.5], 9, [False, False]),
            client([1.0, 1.0], 1.0, 7.0, [0.0, 0.25], 4, [False, False]),
        ],
        weights=[1.0, 2.0, 5.0],
        trainable=["fc.weight", "fc.bias", "out.proj.weight"],
    )
    assert update.mean_update["fc.weight"].tolist() == [[0.75, 0.75]]
    assert update.mean_update["fc.bias"].tolist() == [2.0]
    assert update.mean_update["out.proj.weight"].item() == 4.25
    assert update.layers == {
        "fc": LayerNorms(pytest.approx(math.sqrt(5.125), rel=1e-15), 2.5),
        "out.proj": LayerNorms(4.25, 4.25),
    }
    assert update.mean_update_norm == pytest.approx(math.sqrt(5.125 + 4.25**2), rel=1e-15)
    assert update.mean_client_norm == (10 * 1 + 13 * 2 + 2 * 5) / 8
    assert update.client_norms == (2.0, 10.0, 13.0)
    assert list(update.buffers) == ["bn.running_var", "bn.num_batches_tracked", "ready"]
    assert update.buffers["bn.running_var"].tolist() == [2.0, 0.28125]
    assert update.buffers["bn.num_batches_tracked"].item() == 9
    assert update.buffers["bn.num_batches_tracked"].dtype == torch.int64
    assert update.buffers["ready"].tolist() == [True, False]
    assert update.buffers["ready"].dtype == torch.bool


def test_one_client_has_n_equal_to_e() -> None:
    """The paper's single-client reference: N = E, of the whole and of each module."""
    generator = torch.Generator().manual_seed(0)
    state = {f"{m}.weight": torch.randn(50, 3, generator=generator) for m in ("a", "b")}
    client = {name: torch.randn(50, 3, generator=generator) for name in state}
    update = aggregate(state, [client], weights=[3.7])
    assert update.mean_update_norm == pytest.approx(update.mean_client_norm, rel=1e-8)
    for norms in update.layers.values():
        assert norms.mean_update_norm == pytest.approx(norms.mean_client_norm, rel=1e-8)


def test_opposite_clients_cancel_exactly() -> None:
    generator = torch.Generator().manual_seed(0)
    delta = torch.randn(1000, generator=generator)
    update = aggregate({"w": torch.zeros(1000)}, [{"w": delta}, {"w": -delta}], [0.3, 0.3])
    assert update.mean_update_norm == 0.0
    assert update.mean_client_norm == pytest.approx(delta.double().norm().item(), rel=1e-12)


def test_median_of_an_even_number_of_clients_is_the_mean_of_the_middle_two() -> None:
    clients = [{"w": torch.tensor([x])} for x in (8.0, -1.0, 2.0, 5.0)]
    assert aggregate({"w": torch.zeros(1)}, clients).client_norms == (1.0, 3.5, 8.0)


@pytest.mark.parametrize("weight", [1e-300, 1.0, 600, 1e300])
def test_equal_weights_are_uniform_whatever_they_are(weight: float) -> None:
    """α_k = n_k/n = 1/m where every client has the same number of samples."""
    state = {"w": torch.zeros(3), "b": torch.zeros(3)}
    rows = torch.tensor([[1.0, 2.0, 3.0], [-5.0, 0.25, 7.0], [0.5, 0.125, -1.0]])
    clients = [{"w": row, "b": row} for row in rows]
    uniform = aggregate(state, clients, None, ["w"])
    samples = aggregate(state, clients, [weight] * 3, ["w"])
    torch.testing.assert_close(samples.mean_update, uniform.mean_update, rtol=0, atol=1e-8)
    torch.testing.assert_close(samples.buffers, uniform.buffers, rtol=0, atol=1e-8)
    assert samples.mean_client_norm == pytest.approx(uniform.mean_client_norm, rel=1e-15)


def test_modules_are_those_that_own_parameters_and_their_squares_add_up() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3), nn.ReLU(), nn.Sequential(nn.Linear(3, 2))
    )
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    names = [name for name, _ in model.named_parameters()]
    generator = torch.Generator().manual_seed(3)
    clients = [
        {
            name: tensor + torch.randn(tensor.shape, generator=generator)
            if name in names
            else tensor
            for name, tensor in state.items()
        }
        for _ in range(4)
    ]
    update = aggregate(state, clients, [1.0, 2.0, 3.0, 4.0], names)
    assert set(update.layers) == {"0", "1", "3.0"}
    assert set(update.layers) <= {name for name, _ in model.named_modules()}
    total = sum(norms.mean_update_norm**2 for norms in update.layers.values())
    assert total == pytest.approx(update.mean_update_norm**2, rel=1e-12)
    for module, norms in update.layers.items():
        own = torch.cat(
            [update.mean_update[n].flatten() for n in names if n.rpartition(".")[0] == module]
        )
        assert norms.mean_update_norm == pytest.approx(own.double().norm().item(), rel=1e-12)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("dtype", "mean_dtype"),
    [
        # A half-precision S would round to nothing beside its model: it is float32 at least.
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
    ids=str,
)
def test_dtypes_and_device(dtype: torch.dtype, mean_dtype: torch.dtype, device: str) -> None:
    state = {"w": torch.ones(3, dtype=dtype, device=device)}
    state |= {"mean": torch.ones(3, dtype=dtype, device=device)}
    clients = [
        {"w": state["w"] * 3, "mean": state["mean"] * 2},
        {"w": state["w"] * 4, "mean": state["mean"] * 1.5},
    ]
    update = aggregate(state, clients, trainable=["w"])
    assert (update.mean_update["w"].dtype, update.buffers["mean"].dtype) == (mean_dtype, dtype)
    assert update.mean_update["w"].device.type == update.buffers["mean"].device.type == device
    assert update.mean_update["w"].tolist() == [2.5] * 3
    assert update.buffers["mean"].tolist() == [1.75] * 3


def test_the_difference_of_half_precision_clients_is_taken_in_float32() -> None:
    """1 + 2^-10 less 2^-12 has more bits than float16."""
    state = {"w": torch.tensor([2.0**-12], dtype=torch.float16)}
    update = aggregate(state, [{"w": torch.tensor([1 + 2.0**-10], dtype=torch.float16)}])
    assert update.mean_update["w"].item() == 1 + 2.0**-10 - 2.0**-12


LAYOUTS = {
    "channels_last": lambda x: x.to(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(0, 3).contiguous().transpose(0, 3),
    "strided": lambda x: torch.stack([x, x.neg()], dim=-1)[..., 0],
    "offset": lambda x: torch.cat([x.new_ones(1), x.flatten()])[1:].view_as(x),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("which", ["client", "global", "both"])
def test_memory_layout_makes_no_difference(layout: str, which: str) -> None:
    generator = torch.Generator().manual_seed(5)
    start, *rows = torch.randn(4, 6, 5, 3, 2, generator=generator)
    plain = aggregate(
        {"w": start, "b": start}, [{"w": row, "b": row} for row in rows], trainable=["w"]
    )
    lay = LAYOUTS[layout]
    ours = lay(start) if which != "client" else start
    theirs = [lay(row) if which != "global" else row for row in rows]
    update = aggregate(
        {"w": ours, "b": ours}, [{"w": row, "b": row} for row in theirs], trainable=["w"]
    )
    assert torch.equal(update.mean_update["w"], plain.mean_update["w"])
    assert torch.equal(update.buffers["b"], plain.buffers["b"])
    assert update.mean_update_norm == plain.mean_update_norm
    assert update.mean_client_norm == plain.mean_client_norm


def test_an_expanded_client_and_one_that_requires_grad() -> None:
    client = {"w": torch.tensor(3.0, requires_grad=True).expand(4)}
    update = aggregate({"w": torch.zeros(4, requires_grad=True)}, [client])
    assert update.mean_update["w"].tolist() == [3.0] * 4
    assert not update.mean_update["w"].requires_grad


def test_empty_and_scalar_tensors() -> None:
    state = {"none": torch.zeros(0, 3), "one": torch.tensor(1.0), "no_buffer": torch.zeros(0)}
    state |= {"no_count": torch.zeros(0, dtype=torch.int64)}
    client = {**state, "one": torch.tensor(4.0)}
    update = aggregate(state, [client], trainable=["none", "one"])
    assert update.mean_update["none"].shape == (0, 3)
    assert update.mean_update["one"].shape == ()
    assert update.mean_update["one"].item() == 3.0
    assert update.buffers["no_buffer"].shape == update.buffers["no_count"].shape == (0,)
    assert (update.mean_update_norm, update.mean_client_norm) == (3.0, 3.0)


def test_no_trainable_parameters() -> None:
    update = aggregate({"mean": torch.zeros(2)}, [{"mean": torch.ones(2)}], trainable=[])
    assert update.mean_update == {}
    assert update.layers == {}
    assert (update.mean_update_norm, update.mean_client_norm) == (0.0, 0.0)
    assert update.buffers["mean"].tolist() == [1.0, 1.0]


def test_parameters_that_were_not_trained_are_averaged_like_buffers() -> None:
    state = {"head.weight": torch.zeros(2), "body.weight": torch.ones(2)}
    clients = [{"head.weight": torch.ones(2), "body.weight": torch.ones(2)}] * 3
    update = aggregate(state, clients, trainable=["head.weight"])
    assert set(update.layers) == {"head"}
    assert torch.equal(update.buffers["body.weight"], torch.ones(2))


def test_inputs_are_left_alone() -> None:
    generator = torch.Generator().manual_seed(9)

    def state() -> dict[str, Tensor]:
        return {
            "w": torch.randn(4, 3, generator=generator),
            "mean": torch.rand(3, generator=generator),
            "count": torch.randint(9, (2,), generator=generator),
        }

    ours, theirs, bad = state(), [state(), state()], state()
    bad["w"][0, 0] = math.nan
    before = copy.deepcopy((ours, theirs, bad))
    acc = UpdateAccumulator(ours, ["w"])
    for client in (*theirs, bad):
        acc.add(client, 2.0)
    update = acc.finish()
    for tensor in (*update.mean_update.values(), *update.buffers.values()):
        tensor.fill_(77)  # the result is no view of anything that went in, or of the partial sums
    again = acc.finish()
    torch.testing.assert_close((ours, theirs, bad), before, rtol=0, atol=0, equal_nan=True)
    assert not (again.buffers["count"] == 77).any()
    assert not (again.mean_update["w"] == 77).any()


def test_finish_is_a_look_at_the_sum_so_far() -> None:
    clients = [{"w": torch.tensor([x, 1.0])} for x in (3.0, -7.5, 0.1)]
    acc = UpdateAccumulator({"w": torch.zeros(2)}, ["w"])
    acc.add(clients[0], 1.0)
    assert acc.finish().mean_update["w"].tolist() == [3.0, 1.0]
    acc.add(clients[1], 2.0)
    first, second = acc.finish(), acc.finish()
    assert torch.equal(first.mean_update["w"], second.mean_update["w"])
    acc.add(clients[2], 3.0)
    other = UpdateAccumulator({"w": torch.zeros(2)}, ["w"])
    other.merge(acc)
    straight = aggregate({"w": torch.zeros(2)}, clients, [1.0, 2.0, 3.0])
    for update in (acc.finish(), other.finish()):
        assert torch.equal(update.mean_update["w"], straight.mean_update["w"])
        assert update.mean_client_norm == straight.mean_client_norm


def test_merging_an_empty_accumulator_changes_nothing() -> None:
    state = {"w": torch.zeros(2), "mean": torch.zeros(2), "count": torch.tensor(0)}
    client = {"w": torch.ones(2), "mean": torch.ones(2), "count": torch.tensor(5)}
    full, empty = UpdateAccumulator(state, ["w"]), UpdateAccumulator(state, ["w"])
    full.add(client, 1.0)
    full.merge(empty)
    empty.merge(full)
    for acc in (full, empty):
        update = acc.finish()
        assert update.clients == 1
        assert update.mean_update["w"].tolist() == update.buffers["mean"].tolist() == [1.0, 1.0]
        assert update.buffers["count"].item() == 5


def test_merging_leaves_the_other_as_it_was() -> None:
    state = {"w": torch.zeros(1), "mean": torch.zeros(1)}
    left, right = UpdateAccumulator(state, ["w"]), UpdateAccumulator(state, ["w"])
    for acc, x in ((left, 1.0), (right, 5.0)):
        acc.add({"w": torch.tensor([x]), "mean": torch.tensor([x])}, 1.0)
    left.merge(right)
    left.add({"w": torch.tensor([9.0]), "mean": torch.tensor([9.0])}, 1.0)
    assert left.finish().mean_update["w"].item() == 5.0
    assert right.finish().mean_update["w"].item() == 5.0
    assert right.finish().client_norms == (5.0, 5.0, 5.0)
    assert right.finish().buffers["mean"].item() == 5.0


def test_nothing_to_average() -> None:
    acc = UpdateAccumulator({"w": torch.zeros(1)}, ["w"])
    with pytest.raises(UserError, match="none accepted"):
        acc.finish()
    acc.add({"w": torch.tensor([math.nan])}, 1.0)
    with pytest.raises(UserError, match="1 rejected, none accepted"):
        acc.finish()
