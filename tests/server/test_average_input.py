"""Clients that are broken, hostile or merely different: a result, or one clear error."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.server.average import UpdateAccumulator

NOT_FINITE = [math.nan, math.inf, -math.inf]


def global_state() -> dict[str, Tensor]:
    return {
        "w": torch.zeros(2, 3),
        "bn.running_var": torch.ones(3),
        "count": torch.tensor(0),
        "flag": torch.tensor([False]),
    }


def good(x: float = 1.0) -> dict[str, Tensor]:
    return {
        "w": torch.full((2, 3), x),
        "bn.running_var": torch.full((3,), x),
        "count": torch.tensor(int(min(x, 9))),
        "flag": torch.tensor([x > 1]),
    }


def accumulator() -> UpdateAccumulator:
    return UpdateAccumulator(global_state(), ["w"])


def assert_mean_of_one_and_three(acc: UpdateAccumulator, rejected: int) -> None:
    update = acc.finish()
    assert (update.clients, update.rejected) == (2, rejected)
    assert update.mean_update["w"].tolist() == [[2.0] * 3] * 2
    assert update.mean_client_norm == pytest.approx(2 * math.sqrt(6), rel=1e-15)
    assert update.buffers["bn.running_var"].tolist() == [2.0] * 3
    assert update.buffers["count"].item() == 3
    assert update.client_norms[0] == pytest.approx(math.sqrt(6), rel=1e-15)
    assert update.client_norms[2] == pytest.approx(3 * math.sqrt(6), rel=1e-15)


@pytest.mark.parametrize("bound", [0.0, -1.0, math.nan, "1"])
def test_a_bound_that_is_none_is_refused(bound: float) -> None:
    with pytest.raises(UserError, match=r"^max_client_norm: "):
        UpdateAccumulator(global_state(), ["w"], bound)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ([torch.ones(1)], "list: must map names to tensors"),
        ({"w": torch.ones(1).to_sparse()}, "w: torch.sparse_coo on cpu: must be a dense tensor"),
        ({"w": torch.ones(1, device="meta")}, "w: torch.strided on meta: must be a dense tensor"),
    ],
)
def test_a_global_state_that_is_none_is_refused(state: Any, said: str) -> None:
    with pytest.raises(UserError, match=f"^UpdateAccumulator: {said}"):
        UpdateAccumulator(state, ["w"])


NESTED = torch.nested.nested_tensor([torch.ones(3), torch.ones(3)])


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ([good()], "list: must map names"),
        (None, "NoneType: must map names"),
        (good() | {"w": NESTED}, "w: nested on cpu: must be a dense tensor"),
        (good() | {"bn.running_var": NESTED}, "bn.running_var: nested on cpu: must be a dense"),
        (good() | {"w": torch.ones(2, 3).to_sparse()}, "w: torch.sparse_coo on cpu: must be"),
        (good() | {"count": torch.tensor(1).to_sparse()}, "count: torch.sparse_coo on cpu: must"),
    ],
)
def test_a_client_that_sends_no_dense_tensors_is_refused_in_a_line(state: Any, said: str) -> None:
    acc = accumulator()
    with pytest.raises(UserError, match=f"^client model: {said}[^\n]*$"):
        acc.add(state, 1.0)
    acc.add(good(1.0) | {"w": torch.ones(()).expand(2, 3)}, 1.0)  # expanded is as good as any
    acc.add(good(3.0), 1.0)
    assert_mean_of_one_and_three(acc, rejected=0)


def test_names_may_be_gone_through_once() -> None:
    acc = UpdateAccumulator(global_state(), (name for name in ["w"]))
    acc.add(good(), 1.0)
    assert acc.finish().mean_update_norm > 0


@pytest.mark.parametrize("value", NOT_FINITE)
@pytest.mark.parametrize("name", ["w", "bn.running_var"])
def test_a_client_that_is_not_finite_adds_nothing(name: str, value: float) -> None:
    acc = accumulator()
    assert acc.add(good(1.0), 1.0) is True
    bad = good(1000.0)
    bad[name].view(-1)[-1] = value
    assert acc.add(bad, 7.0) is False
    assert acc.add(good(3.0), 1.0) is True
    assert acc.clients == 2
    assert_mean_of_one_and_three(acc, rejected=1)


@pytest.mark.parametrize("trainable", [["x"], []])
def test_one_nan_among_many_is_seen(trainable: list[str]) -> None:
    for position in (0, 600_000, 1_300_000):
        client = torch.ones(1_300_001)
        client[position] = math.nan
        acc = UpdateAccumulator({"x": torch.zeros(1_300_001)}, trainable)
        assert acc.add({"x": client}, 1.0) is False


@pytest.mark.parametrize(
    ("served", "beyond", "within", "trainable"),
    [
        # 1e39 is finite in float64, and infinite in the float32 that the average is kept in.
        (torch.zeros(1), 1e39, 0.5, ["w"]),
        (torch.zeros(1), 1e39, 0.5, []),
        (torch.full((2,), -3e38), 3e38, -2e38, ["w"]),
        (torch.zeros(2, dtype=torch.float64), 1e200, 1e100, ["w"]),
    ],
    ids=["a wide parameter", "a wide buffer", "the difference overflows", "the norm overflows"],
)
def test_a_finite_client_beyond_what_is_exact_is_rejected(
    served: Tensor, beyond: float, within: float, trainable: list[str]
) -> None:
    acc = UpdateAccumulator({"w": served}, trainable)
    assert acc.add({"w": torch.full_like(served, beyond, dtype=torch.float64)}, 1.0) is False
    assert acc.add({"w": torch.full_like(served, within, dtype=torch.float64)}, 1.0) is True
    update = acc.finish()
    found = served + update.mean_update["w"] if trainable else update.buffers["w"]
    assert found.tolist() == pytest.approx([within] * len(served))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"w": None}, "w"),
        ({"extra": torch.zeros(1)}, "extra"),
        ({"w": torch.zeros(6)}, r"w: shape \(6,\): must be \(2, 3\)"),
        ({"w": torch.zeros(2, 3, dtype=torch.int64)}, "w: torch.int64: must be torch.float32"),
        ({"w": torch.zeros(2, 3, dtype=torch.float8_e4m3fn)}, "w: torch.float8_e4m3fn"),
        ({"count": torch.tensor(0.0)}, "count: torch.float32: must be torch.int64"),
        ({"w": [[0.0] * 3] * 2}, "w: list"),
        ({"w": torch.zeros(2, 3, device="meta")}, "w"),
        pytest.param(
            {("w", 0): torch.zeros(2), 7: 1, "\x1b[31m" * 99: 0}, "unknown", id="odd names"
        ),
    ],
    ids=str,
)
def test_a_client_of_another_kind_is_an_error_that_names_the_entry(change, said: str) -> None:
    acc = accumulator()
    acc.add(good(1.0), 1.0)
    client = {name: t for name, t in {**good(50.0), **change}.items() if t is not None}
    with pytest.raises(UserError, match=said) as caught:
        acc.add(client, 1.0)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 700
    with pytest.raises(UserError, match="client model"):
        acc.add(list(client), 1.0)
    acc.add(good(3.0), 1.0)
    assert_mean_of_one_and_three(acc, rejected=0)


@pytest.mark.parametrize(
    "weight", [0, -1, math.nan, math.inf, True, None, "3", 10**400, torch.ones(2)], ids=str
)
def test_a_weight_that_is_not_positive_and_finite(weight) -> None:
    acc = accumulator()
    acc.add(good(1.0), 1.0)
    with pytest.raises(UserError, match="weight"):
        acc.add(good(50.0), weight)
    acc.add(good(3.0), 1.0)
    assert_mean_of_one_and_three(acc, rejected=0)


@pytest.mark.parametrize("weight", [5e-324, 1.7e308, 600, torch.tensor(2.0)], ids=str)
def test_equal_weights_of_any_size_are_uniform(weight) -> None:
    """α_k = n_k/n = 1/m where every client has the same number of samples."""
    acc = accumulator()
    acc.add(good(1.0), weight)
    acc.add(good(3.0), weight)
    assert_mean_of_one_and_three(acc, rejected=0)


@pytest.mark.parametrize(
    ("state", "trainable", "named"),
    [
        ({"w": torch.zeros(1)}, ["w", "missing.weight"], r"missing\.weight"),
        ({"count": torch.tensor(0)}, ["count"], "count: torch.int64"),
        ({"w": torch.zeros(1, dtype=torch.complex64)}, [], "w: torch.complex64"),
        ({"w": torch.zeros(1, dtype=torch.float8_e4m3fn)}, ["w"], "w: torch.float8_e4m3fn"),
    ],
)
def test_a_global_state_that_cannot_be_averaged(state, trainable, named: str) -> None:
    with pytest.raises(UserError, match=named):
        UpdateAccumulator(state, trainable)


def test_accumulators_over_different_models_do_not_merge() -> None:
    state = {"a.w": torch.zeros(1), "b.w": torch.zeros(1)}
    acc = UpdateAccumulator(state, ["a.w", "b.w"])
    others = [
        UpdateAccumulator(state, ["a.w"]),
        UpdateAccumulator({"a.w": torch.zeros(1)}, ["a.w"]),
        UpdateAccumulator({**state, "a.w": torch.zeros(2)}, ["a.w", "b.w"]),
        UpdateAccumulator({**state, "a.w": torch.zeros(1).double()}, ["a.w", "b.w"]),
    ]
    for other in others:
        with pytest.raises(UserError):
            acc.merge(other)


def test_the_order_of_names_does_not_mix_parameters_up() -> None:
    state = {name: torch.zeros(2) for name in ("a.w", "b.w", "c", "d")}
    client = {name: torch.full((2,), float(k)) for k, name in enumerate(state, start=1)}
    accumulators = []
    for start, trainable in (
        (state, ["a.w", "b.w"]),
        (dict(reversed(state.items())), ["b.w", "a.w"]),
    ):
        acc = UpdateAccumulator(start, trainable)
        acc.add(dict(reversed(client.items())), 1.0)
        update = acc.finish()
        for name, tensor in (update.mean_update | update.buffers).items():
            assert torch.equal(tensor, client[name])
        accumulators.append(acc)
    with pytest.raises(UserError, match="merge"):
        accumulators[0].merge(accumulators[1])


# Longer updates count as Δ_k · c / ‖Δ_k‖.


def test_clipped_clients_worked_by_hand() -> None:
    """c = 5: Δ = (3, 4) stays, (0, -20) counts as (0, -5)."""
    acc = UpdateAccumulator({"a.w": torch.zeros(1), "b.w": torch.zeros(1)}, ["a.w", "b.w"], 5.0)
    acc.add({"a.w": torch.tensor([3.0]), "b.w": torch.tensor([4.0])}, 1.0)
    acc.add({"a.w": torch.tensor([0.0]), "b.w": torch.tensor([-20.0])}, 1.0)
    update = acc.finish()
    assert update.mean_update["a.w"].item() == 1.5
    assert update.mean_update["b.w"].item() == -0.5
    assert update.mean_client_norm == 5.0
    assert update.mean_client_square == 25.0
    assert update.client_norms == (5.0, 5.0, 5.0)
    assert update.layers["a"].mean_client_norm == 1.5
    assert update.layers["b"].mean_client_norm == 4.5


@given(st.floats(0.31, 1e6))
def test_no_clipped_norm_is_above_the_limit(norm: float) -> None:
    acc = UpdateAccumulator({"w": torch.zeros(1, dtype=torch.float64)}, ["w"], 0.3)
    acc.add({"w": torch.tensor([norm], dtype=torch.float64)}, 1.0)
    assert acc.finish().mean_client_norm <= 0.3


def test_clipping_never_lets_a_weight_vanish() -> None:
    """a_k c / ‖Δ_k‖ is below the smallest double here; the other client still counts in full."""
    acc = UpdateAccumulator({"w": torch.zeros(1, dtype=torch.float64)}, ["w"], 1.0)
    acc.add({"w": torch.tensor([1e150], dtype=torch.float64)}, 1e-300)
    acc.add({"w": torch.tensor([0.5], dtype=torch.float64)}, 1e-300)
    update = acc.finish()
    assert update.mean_update["w"].item() == pytest.approx(0.75, rel=1e-9)
    assert update.mean_client_norm == pytest.approx(0.75, rel=1e-12)
