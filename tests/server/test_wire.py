"""Partial sums of several processes, added up as int64 buffers."""

import copy
import math
from functools import reduce

import pytest
import torch
from torch import Tensor

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.server.accumulator import Update, UpdateAccumulator
from fednnnn_plugin.server.wire import Header, merged, pack_sums, unpack

TRAINABLE = ["fc.weight", "fc.bias", "out.weight"]


def states(count: int, dtype: torch.dtype) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(11)

    def state() -> dict[str, Tensor]:
        made = {
            name: torch.randn(shape, generator=generator).to(dtype)
            for name, shape in (("fc.weight", (3, 4)), ("fc.bias", (3,)), ("out.weight", ()))
        }
        made["bn.running_mean"] = torch.randn(5, generator=generator).to(dtype)
        made["bn.num_batches_tracked"] = torch.randint(99, (), generator=generator)
        made["flag"] = torch.rand(2, generator=generator) > 0.5
        return made

    return [state() for _ in range(count)]


def together(parts: list[UpdateAccumulator], capacity: int) -> Update:
    """Do what the processes do: all learn the headers, the buffers are added, or their maximum."""
    contents = [Header.of(part).encode(capacity) for part in parts]
    assert len({len(content) for content in contents}) == 1
    modules = list(parts[0].tally.layer_norms)
    total = merged([Header.decode(content, modules) for content in contents])
    sums = reduce(torch.add, [pack_sums(part, total) for part in parts])
    bounds = reduce(torch.maximum, [part.bounds.encode() for part in parts])
    unpack(parts[0], total, sums, bounds)
    return parts[0].finish()


def assert_same_bits(left: Update, right: Update) -> None:
    for ours, theirs in ((left.mean_update, right.mean_update), (left.buffers, right.buffers)):
        assert list(ours) == list(theirs)
        for name, tensor in ours.items():
            assert tensor.dtype == theirs[name].dtype
            assert tensor.shape == theirs[name].shape
            assert tensor.double().numpy().tobytes() == theirs[name].double().numpy().tobytes()
    assert left.layers == right.layers
    assert left.client_norms == right.client_norms
    for name in ("mean_update_norm", "mean_client_norm", "clients", "rejected"):
        assert getattr(left, name) == getattr(right, name)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("spread", [1.0, 1e4, 1e-9])
def test_ranks_give_the_bits_of_one_accumulator(
    ranks: int, dtype: torch.dtype, spread: float
) -> None:
    """Also with ranks that trained nobody, and weights that fill several bins or drop some."""
    start, *clients = states(6, dtype)
    clients[2]["fc.weight"][0, 0] = math.nan
    whole = UpdateAccumulator(start, TRAINABLE)
    parts = [UpdateAccumulator(start, TRAINABLE) for _ in range(ranks)]
    for k, client in enumerate(clients):
        weight = spread**k
        whole.add(client, weight)
        parts[(3 * k + 1) % min(ranks, 3)].add(client, weight)
    whole.fail()
    parts[-1].fail()
    assert_same_bits(together(parts, capacity=64), whole.finish())


def test_a_round_without_an_accepted_client() -> None:
    (start,) = states(1, torch.float32)
    parts = [UpdateAccumulator(start, TRAINABLE) for _ in range(2)]
    parts[1].fail()
    modules = list(parts[0].tally.layer_norms)
    total = merged([Header.decode(Header.of(part).encode(8), modules) for part in parts])
    assert (total.tally.norms, total.tally.failed) == ([], 1)
    sums = reduce(torch.add, [pack_sums(part, total) for part in parts])
    bounds = reduce(torch.maximum, [part.bounds.encode() for part in parts])
    unpack(parts[0], total, sums, bounds)
    assert (parts[0].clients, parts[0].rejected) == (0, 1)


@pytest.mark.parametrize("trainable", [["x"], []])
def test_more_clients_together_than_add_up_exactly(trainable: list[str]) -> None:
    parts = []
    for _ in range(3):
        part = UpdateAccumulator({"x": torch.zeros(1)}, trainable)
        part.add({"x": torch.ones(1)}, 1.0)
        for _ in range(14):
            part.merge(copy.deepcopy(part))
        parts.append(part)
    with pytest.raises(UserError, match="49152 clients: at most 32767"):
        together(parts, capacity=3 << 14)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_bounds_survive_the_wire(dtype: torch.dtype) -> None:
    """Negative numbers, zeros of both signs and denormals keep their order as integers."""
    info = torch.finfo(dtype)
    values = [
        -info.max,
        -1.0,
        -info.smallest_normal,
        -0.0,
        0.0,
        info.smallest_normal,
        1.0,
        info.max,
    ]
    start = {"b": torch.zeros(len(values), dtype=dtype), "n": torch.tensor([0, 0])}
    rows = [values, values[::-1], [0.5] * len(values)]
    counts = [[-(2**62), 3], [-5, 2**62], [-9, 0]]
    whole = UpdateAccumulator(start, [])
    parts = [UpdateAccumulator(start, []) for _ in rows]
    for part, row, count in zip(parts, rows, counts, strict=True):
        client = {"b": torch.tensor(row, dtype=dtype), "n": torch.tensor(count)}
        whole.add(client, 1.0)
        part.add(client, 1.0)
    update = together(parts, capacity=4)
    assert_same_bits(update, whole.finish())
    assert update.buffers["n"].tolist() == [-5, 2**62]


def test_a_sum_that_came_over_the_wire_takes_more_clients() -> None:
    start, *clients = states(4, torch.float32)
    whole = UpdateAccumulator(start, TRAINABLE)
    parts = [UpdateAccumulator(start, TRAINABLE) for _ in range(2)]
    for k, client in enumerate(clients):
        whole.add(client, 1.0 + k)
    parts[0].add(clients[0], 1.0)
    parts[1].add(clients[1], 2.0)
    together(parts, capacity=4)
    parts[0].add(clients[2], 3.0)
    assert_same_bits(parts[0].finish(), whole.finish())
