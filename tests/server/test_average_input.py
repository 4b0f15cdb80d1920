"""Clients that are broken, hostile or merely different: a result, or one clear error."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.server.accumulator import UpdateAccumulator

GLOBAL = {
    "w": torch.zeros(2, 3),
    "bn.running_var": torch.ones(3),
    "count": torch.tensor(0),
    "flag": torch.tensor([False]),
}


def good(x: float = 1.0) -> dict[str, Tensor]:
    values = ([[x] * 3] * 2, [x] * 3, int(min(x, 9)), [x > 1])
    return {name: torch.tensor(value) for name, value in zip(GLOBAL, values, strict=True)}


@pytest.fixture
def acc() -> UpdateAccumulator:
    return UpdateAccumulator(GLOBAL, ["w"])


def check_mean_of_one_and_three(acc: UpdateAccumulator, rejected: int = 0) -> None:
    update = acc.finish()
    assert (update.clients, update.rejected) == (2, rejected)
    assert update.mean_update["w"].tolist() == [[2.0] * 3] * 2
    assert update.mean_client_norm == pytest.approx(2 * math.sqrt(6), rel=1e-15)
    assert update.buffers["bn.running_var"].tolist() == [2.0] * 3
    assert update.buffers["count"].item() == 3
    norms = [x * math.sqrt(6) for x in (1, 2, 3)]
    assert update.client_norms == pytest.approx(norms, rel=1e-15)


SPARSE, META = torch.ones(2, 3).to_sparse(), torch.ones(2, 3, device="meta")
NESTED = torch.nested.nested_tensor([torch.ones(3), torch.ones(3)])


@pytest.mark.parametrize(
    ("state", "trainable", "bound", "named"),
    [
        *((GLOBAL, ["w"], bound, "max_client_norm: ") for bound in (0.0, math.nan, "1")),
        ([torch.ones(1)], ["w"], None, "UpdateAccumulator: list"),
        ({"w": SPARSE}, ["w"], None, "UpdateAccumulator: w: "),
        ({"w": torch.zeros(1)}, ["w", "lost.weight"], None, r".*lost\.weight"),
        ({"count": torch.tensor(0)}, ["count"], None, ".*count: "),
        ({"w": torch.zeros(1, dtype=torch.complex64)}, [], None, ".*w: "),
    ],
)
def test_accumulator_arguments_are_refused(
    state: Any, trainable: list[str], bound: Any, named: str
) -> None:
    with pytest.raises(UserError, match=f"^{named}"):
        UpdateAccumulator(state, trainable, bound)


@pytest.mark.parametrize(
    ("state", "named"),
    [
        ([good()], "list"),
        (good() | {"bn.running_var": NESTED}, "bn.running_var: "),
        (good() | {"w": META}, "w: "),
        (good() | {"w": [[0.0] * 3] * 2}, "w: "),
        ({name: x for name, x in good().items() if name != "w"}, ".*'w'"),
        (good() | {("w", 0): torch.zeros(2), 7: 1, "\x1b[31m" * 99: 0}, ".*unknown"),
        (good() | {"w": torch.zeros(6)}, "w: "),
        (good() | {"w": torch.zeros(2, 3).to(torch.float8_e4m3fn)}, "w: "),
        (good() | {"count": torch.tensor(0.0)}, "count: "),
    ],
)
def test_client_of_another_form_is_refused(acc: UpdateAccumulator, state: Any, named: str) -> None:
    acc.add(good(1.0) | {"w": torch.ones(()).expand(2, 3)}, 1.0)  # expanded is as good as any
    with pytest.raises(UserError, match=f"^client model: {named}") as refused:
        acc.add(state, 1.0)
    for weight in (0, math.nan, math.inf, True, "3", 10**400, torch.ones(2)):
        with pytest.raises(UserError, match=r"^client weight: "):
            acc.add(good(50.0), weight)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 700
    acc.add(good(3.0), 1.0)
    check_mean_of_one_and_three(acc)


@pytest.mark.parametrize(("weight", "value"), [(5e-324, math.nan), (1.7e308, -math.inf)])
@pytest.mark.parametrize("name", ["w", "bn.running_var"])
def test_client_not_finite_adds_nothing(
    acc: UpdateAccumulator, name: str, value: float, weight: Any
) -> None:
    """Equal weights of any size are uniform: α_k = n_k/n = 1/m."""
    bad = good(1000.0)
    bad[name].view(-1)[-1] = value
    accepted = [acc.add(state, weight) for state in (good(1.0), bad, good(3.0))]
    assert accepted == [True, False, True]
    check_mean_of_one_and_three(acc, rejected=1)


def test_one_nan_among_many_is_seen() -> None:
    acc = UpdateAccumulator({"x": torch.zeros(1_300_001), "b": torch.zeros(1_300_001)}, ["x"])
    for name in ("x", "b"):
        for position in (0, 600_000, 1_300_000):
            client = {"x": torch.ones(1_300_001), "b": torch.ones(1_300_001)}
            client[name][position] = math.nan
            assert acc.add(client, 1.0) is False


@pytest.mark.parametrize(
    ("served", "beyond", "within", "trainable"),
    [
        # 1e39 is finite in float64, and infinite in the float32 that the average is kept in.
        (torch.zeros(1), 1e39, 0.5, []),
        (torch.full((2,), -3e38), 3e38, -2e38, ["w"]),  # the difference overflows
        (torch.zeros(2, dtype=torch.float64), 1e200, 1e100, ["w"]),  # the norm overflows
    ],
)
def test_client_beyond_the_exact_range_is_rejected(
    served: Tensor, beyond: float, within: float, trainable: list[str]
) -> None:
    acc = UpdateAccumulator({"w": served}, trainable)
    for value, accepted in ((beyond, False), (within, True)):
        client = {"w": torch.full_like(served, value, dtype=torch.float64)}
        assert acc.add(client, 1.0) is accepted
    update = acc.finish()
    found = served + update.mean_update["w"] if trainable else update.buffers["w"]
    assert found.tolist() == pytest.approx([within] * len(served))


def test_accumulators_of_different_models_do_not_merge() -> None:
    state = {"a.w": torch.zeros(1), "b.w": torch.zeros(1)}
    acc = UpdateAccumulator(state, ["a.w", "b.w"])
    for other in (
        UpdateAccumulator(state, ["a.w", "b.w"], 1.0),
        UpdateAccumulator(state, ["a.w"]),
        UpdateAccumulator(state | {"a.w": torch.zeros(2)}, ["a.w", "b.w"]),
        UpdateAccumulator(state | {"a.w": torch.zeros(1).double()}, ["a.w", "b.w"]),
        UpdateAccumulator(dict(reversed(state.items())), ["b.w", "a.w"]),
    ):
        with pytest.raises(UserError, match="merge"):
            acc.merge(other)


def test_clipped_clients_worked_by_hand() -> None:
    """c = 5: Δ = (3, 4) stays, (0, -20) counts as (0, -5)."""
    acc = UpdateAccumulator({"a.w": torch.zeros(1), "b.w": torch.zeros(1)}, ["a.w", "b.w"], 5.0)
    for a, b in ((3.0, 4.0), (0.0, -20.0)):
        acc.add({"a.w": torch.tensor([a]), "b.w": torch.tensor([b])}, 1.0)
    update = acc.finish()
    assert torch.cat([*update.mean_update.values()]).tolist() == [1.5, -0.5]
    assert (update.mean_client_norm, update.mean_client_square) == (5.0, 25.0)
    assert update.client_norms == (5.0, 5.0, 5.0)
    assert [layer.mean_client_norm for layer in update.layers.values()] == [1.5, 4.5]
