"""What is not trained: bounded, counted, left out, and frozen."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fednnnn_plugin.server.accumulator import UpdateAccumulator
from fednnnn_plugin.server.buffers import LARGEST_STEP

W_T = {
    "w": torch.zeros(2),
    "bn.running_mean": torch.zeros(2),
    "bn.running_var": torch.ones(2),
    "bn.num_batches_tracked": torch.tensor(5),
    # No counts: these may be, or become, negative.
    "bn.place": torch.tensor(-1),
    "bn.zero_point": torch.tensor(0, dtype=torch.int32),
}
MOST = 5 + LARGEST_STEP


def client(**changes: Any) -> dict[str, Tensor]:
    changed = {f"bn.{name}": value for name, value in changes.items()}
    changed = {name: torch.as_tensor(x, dtype=W_T[name].dtype) for name, x in changed.items()}
    return W_T | {"w": torch.ones(2)} | changed


@pytest.mark.parametrize("scale", [1.0, 1e37])  # whose square is no float32
def test_buffers_are_clipped_worked_by_hand(scale: float, caplog: pytest.LogCaptureFixture) -> None:
    """c = 1: the change (3, 4, 0, 0) counts as (0.6, 0.8, 0, 0); (0, 0.5, 0, 0) stays."""
    acc = UpdateAccumulator(W_T, ["w"], 1.0)
    assert acc.add(client(running_mean=[3.0 * scale, 4.0 * scale]), 1.0, "Ada")
    assert "Ada" in caplog.text
    caplog.clear()
    assert acc.add(client(running_mean=[0.0, 0.5]), 1.0, "Bob")
    assert not caplog.records
    update = acc.finish()
    assert update.buffers["bn.running_mean"].tolist() == pytest.approx([0.3, 0.65])
    assert update.buffers["bn.running_var"].tolist() == [1.0, 1.0]


def test_clipped_buffer_may_be_larger_than_its_clients() -> None:
    state = {"w": torch.zeros(1), "b": torch.tensor([2.0**40], dtype=torch.float64)}
    acc = UpdateAccumulator(state, ["w"], 1.0)
    assert acc.add(state | {"b": torch.zeros(1)}, 1.0)
    assert acc.finish().buffers["b"].tolist() == [2.0**40 - 1]


def test_variance_below_zero_counts_as_zero(caplog: pytest.LogCaptureFixture) -> None:
    acc = UpdateAccumulator(W_T, ["w"])
    assert acc.add(client(running_var=[-1e30, 0.5]), 1.0, "Ada")
    assert acc.add(client(), 1.0, "Bob")
    assert acc.finish().buffers["bn.running_var"].tolist() == [0.5, 0.75]
    assert [name in caplog.text for name in ("Ada", "Bob")] == [True, False]


@pytest.mark.parametrize("count", [-1, -(2**63), MOST + 1, 2**63 - 1])
def test_impossible_count_is_that_of_w_t(count: int, caplog: pytest.LogCaptureFixture) -> None:
    """Below 0, as FedML's local noise may leave it, or too many steps of a round."""
    acc = UpdateAccumulator(W_T, ["w"])
    assert acc.add(client(num_batches_tracked=count, place=-3, zero_point=-7), 1.0, "Ada")
    assert "Ada" in caplog.text
    caplog.clear()
    assert [x.item() for x in acc.finish().buffers.values() if not x.ndim] == [5, -3, -7]
    assert acc.add(client(num_batches_tracked=MOST), 1.0, "Bob")
    assert not caplog.records
    assert acc.finish().buffers["bn.num_batches_tracked"] == MOST


FROZEN = {"frozen": torch.full((3,), 0.1), "w": torch.zeros(1)}


def test_frozen_entries_take_no_memory() -> None:
    """They may be missing; their average could have other bits."""
    acc = UpdateAccumulator(FROZEN, ["w"])
    acc.add(FROZEN | {"w": torch.ones(1)}, 0.3)
    acc.add({"w": torch.ones(1)}, 0.4)
    assert torch.equal(acc.finish().buffers["frozen"], FROZEN["frozen"])
    assert not acc._buffers.sums


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_frozen_entry_that_some_moved_counts_all(order: tuple[int, ...]) -> None:
    clients = [{"frozen": torch.full((3,), 0.4)}, {}, {"frozen": FROZEN["frozen"]}]
    acc, other = (UpdateAccumulator(FROZEN, ["w"]) for _ in range(2))
    for place, k in enumerate(order):
        (acc if place < 2 else other).add(clients[k] | {"w": torch.ones(1)}, 2.0)
    acc.merge(other)
    assert acc.finish().buffers["frozen"].tolist() == pytest.approx([0.2] * 3)
