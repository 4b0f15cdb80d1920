"""Clients that are broken, hostile or merely different: a result, or one clear error."""

import contextlib
import math

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


@pytest.mark.parametrize("position", [0, 600_000, 1_300_000])
def test_one_nan_among_many_is_seen(position: int) -> None:
    size = 1_300_001
    client = torch.ones(size)
    client[position] = math.nan
    for state, trainable in (({"x": torch.zeros(size)}, ["x"]), ({"x": torch.zeros(size)}, [])):
        assert UpdateAccumulator(state, trainable).add({"x": client}, 1.0) is False


@pytest.mark.parametrize("name", ["w", "bn.running_var"])
def test_a_wider_client_beyond_the_models_range_is_rejected(name: str) -> None:
    """1e39 is finite in float64, and infinite in the float32 that the average is kept in."""
    acc = accumulator()
    client = good()
    client[name] = client[name].double() * 1e39
    assert acc.add(client, 1.0) is False
    client[name] = client[name] * 1e-39
    assert acc.add(client, 1.0) is True
    update = acc.finish()
    assert update.buffers["bn.running_var"].tolist() == [1.0] * 3
    assert update.mean_update["w"].tolist() == [[1.0] * 3] * 2


@pytest.mark.parametrize(
    ("served", "beyond", "within"),
    [
        (torch.tensor([-3e38]), torch.tensor([3e38]), torch.tensor([-2e38])),
        (torch.zeros(2).double(), torch.ones(2).double() * 1e200, torch.ones(2).double() * 1e100),
    ],
    ids=["the difference overflows", "the norm overflows"],
)
def test_a_finite_client_beyond_the_exact_range_is_rejected(
    served: Tensor, beyond: Tensor, within: Tensor
) -> None:
    acc = UpdateAccumulator({"w": served}, ["w"])
    assert acc.add({"w": beyond}, 1.0) is False
    assert acc.add({"w": within}, 1.0) is True


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
        ({"w": torch.zeros(2, 3).to_sparse()}, "w"),
        ({"w": torch.zeros(2, 3, device="meta")}, "w"),
    ],
    ids=str,
)
def test_a_client_of_another_kind_is_an_error_that_names_the_entry(change, said: str) -> None:
    acc = accumulator()
    acc.add(good(1.0), 1.0)
    client = {name: t for name, t in {**good(50.0), **change}.items() if t is not None}
    with pytest.raises(UserError, match=said) as caught:
        acc.add(client, 1.0)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="client model"):
        acc.add(list(client), 1.0)
    acc.add(good(3.0), 1.0)
    assert_mean_of_one_and_three(acc, rejected=0)


@pytest.mark.parametrize(
    "weight", [0, -1, *NOT_FINITE, True, None, "3", 10**400, torch.ones(2), 1j], ids=str
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
    state = {"a.w": torch.zeros(2), "b.w": torch.zeros(2), "c": torch.zeros(2), "d": torch.zeros(2)}
    backwards = dict(reversed(state.items()))
    client = {name: torch.full((2,), float(k)) for k, name in enumerate(state, start=1)}
    one, other = (
        UpdateAccumulator(state, ["a.w", "b.w"]),
        UpdateAccumulator(backwards, ["b.w", "a.w"]),
    )
    one.add(dict(reversed(client.items())), 1.0)
    other.add(client, 1.0)
    for acc in (one, other):
        update = acc.finish()
        for name, tensor in (update.mean_update | update.buffers).items():
            assert torch.equal(tensor, client[name])
    with pytest.raises(UserError, match="merge"):
        one.merge(other)


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


def test_clipping_never_lets_a_weight_vanish() -> None:
    """a_k c / ‖Δ_k‖ is below the smallest double here; the other client still counts in full."""
    acc = UpdateAccumulator({"w": torch.zeros(1, dtype=torch.float64)}, ["w"], 1.0)
    acc.add({"w": torch.tensor([1e150], dtype=torch.float64)}, 1e-300)
    acc.add({"w": torch.tensor([0.5], dtype=torch.float64)}, 1e-300)
    update = acc.finish()
    assert update.mean_update["w"].item() == pytest.approx(0.75, rel=1e-9)
    assert update.mean_client_norm == pytest.approx(0.75, rel=1e-12)


def test_failed_clients_are_counted() -> None:
    acc, other = accumulator(), accumulator()
    acc.add(good(1.0), 1.0)
    acc.fail()
    other.add(good(3.0), 1.0)
    other.fail()
    bad = good()
    bad["w"][0, 0] = math.nan
    other.add(bad, 1.0)
    acc.merge(other)
    assert_mean_of_one_and_three(acc, rejected=3)


# Whatever comes in, the outcome is True, False or a UserError, and only True adds something.

VALUES = st.sampled_from([0.0, -0.0, 1.0, -2.5, 1e-45, 5e-324, 1e38, -3.4e38, 1e300, *NOT_FINITE])
DTYPES = st.sampled_from(
    [torch.float16, torch.float32, torch.float64, torch.int8, torch.int64, torch.complex64]
)
SHAPES = st.sampled_from([(), (0,), (2, 3), (3,), (6,)])
ANYTHING = st.builds(
    lambda shape, dtype, value: torch.full(shape, value, dtype=torch.float64).to(dtype),
    SHAPES,
    DTYPES,
    VALUES,
) | st.sampled_from([None, 1.0, "w", [1.0], {}])
CLIENTS = st.builds(
    lambda x, changes, dropped: {
        name: value for name, value in (good(x) | changes).items() if name not in dropped
    },
    st.sampled_from([0.0, 1.0, 3.0, 1e-40, 1e30]),
    st.dictionaries(st.sampled_from([*global_state(), "unknown"]), ANYTHING, max_size=1),
    st.sets(st.sampled_from(list(global_state())), max_size=1) | st.just(set()),
)


@given(st.lists(st.tuples(CLIENTS, VALUES | st.just(1.0)), max_size=4))
def test_anything_ends_in_a_result_or_a_user_error(arrivals) -> None:
    acc, accepted, rejected = accumulator(), accumulator(), 0
    for client, weight in arrivals:
        with contextlib.suppress(UserError):
            if acc.add(client, weight):
                assert accepted.add(client, weight)
            else:
                rejected += 1
    assert (acc.clients, acc.rejected) == (accepted.clients, rejected)
    if not acc.clients:
        return
    update, expected = acc.finish(), accepted.finish()
    for name, tensor in (update.mean_update | update.buffers).items():
        assert torch.equal(tensor, (expected.mean_update | expected.buffers)[name])
        assert not tensor.is_floating_point() or tensor.isfinite().all()
    assert update.mean_update_norm == expected.mean_update_norm <= update.mean_client_norm
    assert math.isfinite(update.mean_client_norm)
    assert update.client_norms == expected.client_norms
