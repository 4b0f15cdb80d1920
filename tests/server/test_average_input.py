"""Clients that are broken, hostile or merely different: a result, or one clear error."""

import math

import pytest
import torch
from hypothesis import given, settings
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
@pytest.mark.parametrize("index", [0, -1])
def test_a_client_that_is_not_finite_adds_nothing(name: str, index: int, value: float) -> None:
    acc = accumulator()
    assert acc.add(good(1.0), 1.0) is True
    bad = good(1000.0)
    bad[name].view(-1)[index] = value
    assert acc.add(bad, 7.0) is False
    assert acc.add(good(3.0), 1.0) is True
    assert (acc.clients, acc.rejected) == (2, 1)
    assert_mean_of_one_and_three(acc, rejected=1)


@pytest.mark.parametrize("position", [0, 600_000, 1_300_000])
def test_one_nan_among_many_is_seen(position: int) -> None:
    size = 1_300_001
    client = torch.ones(size)
    client[position] = math.nan
    for state, trainable in (({"x": torch.zeros(size)}, ["x"]), ({"x": torch.zeros(size)}, [])):
        assert UpdateAccumulator(state, trainable).add({"x": client}, 1.0) is False


def test_infinities_of_both_signs_and_nan_together() -> None:
    acc = UpdateAccumulator({"w": torch.zeros(3)}, ["w"])
    assert acc.add({"w": torch.tensor([math.inf, -math.inf, math.nan])}, 1.0) is False


def test_a_difference_that_overflows_is_rejected() -> None:
    """Both models are finite, w_k - w_t is not."""
    acc = UpdateAccumulator({"w": torch.tensor([-3e38])}, ["w"])
    assert acc.add({"w": torch.tensor([3e38])}, 1.0) is False
    assert acc.add({"w": torch.tensor([-2e38])}, 1.0) is True
    assert acc.finish().mean_update["w"].item() == pytest.approx(1e38, rel=1e-6)


def test_a_norm_beyond_float64_is_rejected() -> None:
    acc = UpdateAccumulator({"w": torch.zeros(2, dtype=torch.float64)}, ["w"])
    assert acc.add({"w": torch.full((2,), 1e200, dtype=torch.float64)}, 1.0) is False
    assert acc.add({"w": torch.full((2,), 1e100, dtype=torch.float64)}, 1.0) is True


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


def test_a_half_precision_model_takes_float32_clients() -> None:
    acc = UpdateAccumulator({"w": torch.ones(2, dtype=torch.float16)}, ["w"])
    assert acc.add({"w": torch.full((2,), 1 + 2.0**-20)}, 1.0) is True
    assert acc.finish().mean_update["w"].tolist() == [2.0**-20] * 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"w": None}, "w"),
        ({"extra": torch.zeros(1)}, "extra"),
        ({"w": torch.zeros(3, 2)}, r"w: shape \(3, 2\): must be \(2, 3\)"),
        ({"w": torch.zeros(6)}, r"w: shape \(6,\): must be \(2, 3\)"),
        ({"w": torch.zeros(1, 1)}, r"w: shape \(1, 1\)"),
        ({"count": torch.tensor([0])}, r"count: shape \(1,\): must be \(\)"),
        ({"w": torch.zeros(2, 3, dtype=torch.int64)}, "w: torch.int64: must be torch.float32"),
        ({"w": torch.zeros(2, 3, dtype=torch.complex64)}, "w: torch.complex64"),
        ({"w": torch.zeros(2, 3, dtype=torch.float8_e4m3fn)}, "w: torch.float8_e4m3fn"),
        ({"bn.running_var": torch.zeros(3, dtype=torch.bool)}, "bn.running_var: torch.bool"),
        ({"count": torch.tensor(0.0)}, "count: torch.float32: must be torch.int64"),
        ({"flag": torch.tensor([7])}, "flag: torch.int64: must be torch.bool"),
        ({"w": [[0.0] * 3] * 2}, "w: list: must be a tensor"),
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
    acc.add(good(3.0), 1.0)
    assert_mean_of_one_and_three(acc, rejected=0)


@pytest.mark.parametrize("client", [None, [], "model", 3], ids=repr)
def test_a_client_that_is_no_mapping(client) -> None:
    with pytest.raises(UserError, match="client model"):
        accumulator().add(client, 1.0)


@pytest.mark.parametrize(
    "weight", [0, 0.0, -1, *NOT_FINITE, True, None, "3", 10**400, torch.ones(2), 1j, [1.0]], ids=str
)
def test_a_weight_that_is_not_positive_and_finite(weight) -> None:
    acc = accumulator()
    acc.add(good(1.0), 1.0)
    with pytest.raises(UserError, match="weight"):
        acc.add(good(50.0), weight)
    acc.add(good(3.0), 1.0)
    assert_mean_of_one_and_three(acc, rejected=0)


@pytest.mark.parametrize("weight", [5e-324, 1.7e308, 3, torch.tensor(2.0)], ids=str)
def test_any_positive_finite_weight(weight) -> None:
    acc = accumulator()
    acc.add(good(1.0), weight)
    acc.add(good(3.0), weight)
    assert_mean_of_one_and_three(acc, rejected=0)


def test_an_accumulator_needs_floating_parameters_that_exist() -> None:
    with pytest.raises(UserError, match=r"missing\.weight"):
        UpdateAccumulator({"w": torch.zeros(1)}, ["w", "missing.weight"])
    with pytest.raises(UserError, match=r"count: torch\.int64"):
        UpdateAccumulator({"count": torch.tensor(0)}, ["count"])


@pytest.mark.parametrize("trainable", [["w"], []])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e4m3fn], ids=str)
def test_a_global_state_that_cannot_be_averaged(dtype: torch.dtype, trainable) -> None:
    with pytest.raises(UserError, match=f"w: {dtype}"):
        UpdateAccumulator({"w": torch.zeros(1, dtype=dtype)}, trainable)


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
    assert update.client_norms == (5.0, 5.0, 5.0)
    assert update.layers["a"].mean_client_norm == 1.5
    assert update.layers["b"].mean_client_norm == 4.5


def test_clipping_bounds_what_one_huge_client_does() -> None:
    """Normalisation moves by βE, and E grows with one client's norm as N does: clip it."""

    def mean_client_norm(c: float | None) -> float:
        acc = UpdateAccumulator({"w": torch.zeros(10)}, ["w"], c)
        for _ in range(9):
            acc.add({"w": torch.full((10,), 0.1)}, 1.0)
        acc.add({"w": torch.full((10,), 1e20)}, 1.0)
        return acc.finish().mean_client_norm

    assert mean_client_norm(None) > 1e18
    assert mean_client_norm(1.0) < 1.0


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

DTYPES = [
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e5m2),
    *(torch.int8, torch.uint8, torch.int64, torch.bool, torch.complex64),
]
VALUES = st.sampled_from(
    [0.0, -0.0, 1.0, -2.5, 1e-45, 5e-324, 1e38, 3.4e38, -3.4e38, 1e300, *NOT_FINITE]
)
SHAPES = st.sampled_from([(), (0,), (1,), (2, 3), (3,), (3, 2), (6,)])
ANYTHING = st.builds(
    lambda shape, dtype, value: torch.full(shape, value, dtype=torch.float64).to(dtype),
    SHAPES,
    st.sampled_from(DTYPES),
    VALUES,
)
FITTING = st.builds(good, st.sampled_from([0.0, 1.0, 3.0, 1e-40, 1e30]))


@st.composite
def mutated_clients(draw: st.DrawFn) -> dict[str, object]:
    client: dict[str, object] = dict(draw(FITTING))
    for _ in range(draw(st.integers(0, 2))):
        name = draw(st.sampled_from([*global_state(), "unknown", ""]))
        action = draw(st.sampled_from(["drop", "replace", "swap", "fill", "value"]))
        tensor = client.get(name)
        if action == "drop":
            client.pop(name, None)
        elif action == "replace":
            client[name] = draw(ANYTHING)
        elif action == "swap":
            client[name] = draw(st.sampled_from([None, 1.0, "w", [1.0], b"", {}]))
        elif isinstance(tensor, Tensor) and tensor.is_floating_point():
            client[name] = (tensor.double() * 0 + draw(VALUES)).to(tensor.dtype)
    return client


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(mutated_clients(), VALUES | st.just(1.0)), max_size=4))
def test_anything_ends_in_a_result_or_a_user_error(arrivals) -> None:
    acc, accepted, rejected = accumulator(), accumulator(), 0
    messages: list[str] = []
    for client, weight in arrivals:
        try:
            outcome = acc.add(client, weight)
        except UserError as error:
            messages.append(str(error))
            continue
        if outcome:
            assert accepted.add(client, weight)
        else:
            rejected += 1
    assert not any("\n" in message for message in messages)
    assert (acc.clients, acc.rejected) == (accepted.clients, rejected)
    if not acc.clients:
        with pytest.raises(UserError):
            acc.finish()
        return
    update, expected = acc.finish(), accepted.finish()
    for name, tensor in (update.mean_update | update.buffers).items():
        assert torch.equal(tensor, (expected.mean_update | expected.buffers)[name])
        assert not tensor.is_floating_point() or tensor.isfinite().all()
    assert update.mean_update_norm == expected.mean_update_norm <= update.mean_client_norm
    assert math.isfinite(update.mean_client_norm)
    assert update.client_norms == expected.client_norms
