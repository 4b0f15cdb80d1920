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


def test_variance_or_count_below_zero_costs_no_client(caplog: pytest.LogCaptureFixture) -> None:
    """The variance counts as 0, the count as it was, as where FedML's local noise leaves it."""
    acc = UpdateAccumulator(W_T, ["w"])
    assert acc.add(client(running_var=[-1e30, 0.5]), 1.0, "Ada")
    assert acc.add(client(), 1.0, "Bob")
    assert acc.finish().buffers["bn.running_var"].tolist() == [0.5, 0.75]
    alone = UpdateAccumulator(W_T, ["w"])
    assert alone.add(client(num_batches_tracked=-(2**63), zero_point=-7), 1.0, "Eve")
    buffers = alone.finish().buffers
    assert (buffers["bn.num_batches_tracked"].item(), buffers["bn.zero_point"].item()) == (5, -7)
    assert [name in caplog.text for name in ("Ada", "Eve", "Bob")] == [True, True, False]


@pytest.mark.parametrize("count", [MOST + 1, 2**63 - 1])
def test_count_that_is_none_rejects_its_client(
    count: int, caplog: pytest.LogCaptureFixture
) -> None:
    acc = UpdateAccumulator(W_T, ["w"])
    assert acc.add(client(num_batches_tracked=count), 1.0, "Ada") is False
    assert "Ada" in caplog.text
    assert acc.add(client(num_batches_tracked=MOST, place=-3, zero_point=-7), 1.0) is True
    update = acc.finish()
    assert (update.clients, update.rejected) == (1, 1)
    assert [x.item() for x in update.buffers.values() if not x.ndim] == [MOST, -3, -7]


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
