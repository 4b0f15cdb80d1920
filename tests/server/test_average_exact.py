"""Same bits in any order, on any number of threads; the value against rational arithmetic."""

from dataclasses import dataclass
from fractions import Fraction
from math import isqrt
from statistics import fmean

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.server.accumulator import UpdateAccumulator
from fednnnn_plugin.server.layout import ModelState
from fednnnn_plugin.server.sum import BinnedSum, pieces
from fednnnn_plugin.server.update import Update
from fednnnn_plugin.user_code import on_threads

CHUNK = 131_072  # elements that are handled at a time

WEIGHTS = st.floats(1e-300, 1e300)
DOUBLES = st.floats(1e-120, 1e120) | st.just(0.0)
ELEMENTS = {  # any finite value whose differences are finite, too, denormals included
    torch.float16: st.floats(-60000, 60000, width=16),
    torch.float32: st.floats(-(2.0**126), 2.0**126, width=32),
    torch.float64: DOUBLES | DOUBLES.map(lambda x: -x),
}
HALF_ULP = {torch.float16: 2.0**-24, torch.float32: 2.0**-24, torch.float64: 2.0**-53}
PRECISION = {dtype: Fraction(x) for dtype, x in HALF_ULP.items()}  # S is float32 at least
SMALLEST = {dtype: Fraction(2) ** (-150 if x > 1e-10 else -1074) for dtype, x in HALF_ULP.items()}
UNDERFLOW = Fraction(10) ** -150  # less may round to zero, as UpdateAccumulator says


@dataclass(frozen=True)
class Case:
    """A global state and weighted clients: ``m.w`` and ``n.v`` are trained, ``b`` is a buffer."""

    state: dict[str, Tensor]
    clients: list[dict[str, Tensor]]
    weights: list[float]

    def accumulator(self, members: list[int]) -> UpdateAccumulator:
        acc = UpdateAccumulator(self.state, ["m.w", "n.v"])
        for member in members:
            assert acc.add(self.clients[member], self.weights[member])
            if member % 2:
                acc.finish()  # changes nothing
        return acc


@st.composite
def cases(draw: st.DrawFn) -> Case:
    dtype = draw(st.sampled_from(list(ELEMENTS)))
    shapes = draw(st.tuples(*[st.lists(st.integers(0, 3), max_size=2)] * 3))

    def state() -> dict[str, Tensor]:
        made = {}
        for name, shape in zip(("m.w", "n.v", "b"), shapes, strict=True):
            size = torch.Size(shape).numel()
            values = draw(st.lists(ELEMENTS[dtype], min_size=size, max_size=size))
            made[name] = torch.tensor(values, dtype=torch.float64).to(dtype).reshape(shape)
        return made

    count = draw(st.integers(1, 6))
    weights = draw(st.lists(WEIGHTS, min_size=count, max_size=count))
    return Case(state(), [state() for _ in range(count)], weights)


def bits(update: Update) -> tuple[object, ...]:
    tensors = [update.vector, *update.buffers.values()]
    norms = (update.mean_update_norm, update.mean_client_norm, update.mean_client_square)
    measured = (*norms, update.orthogonal_norm, update.layers, update.client_norms)
    return *(tensor.numpy().tobytes() for tensor in tensors), repr(measured)


def root(x: Fraction) -> Fraction:
    """Return √x to 2^-100 of itself."""
    n = x.numerator * x.denominator
    shift = 200 + n.bit_length() % 2
    return Fraction(isqrt(n << 2 * shift), x.denominator << shift)


def exact(*tensors: Tensor) -> np.ndarray:
    """Return all elements as fractions."""
    values = (x for tensor in tensors for x in tensor.double().flatten().tolist())
    return np.array([*map(Fraction, values)], dtype=object)


def grid_error(shares: np.ndarray, rows: np.ndarray) -> Fraction:
    """Return what may be lost: 2^-32 of each client's largest element; all of it below 2^-31 of
    another client's."""
    tops = shares * abs(rows).max(axis=1, initial=Fraction(0))
    return sum(top if top <= max(tops) / 2**31 else top / 2**32 for top in tops)


@pytest.mark.slow
@given(cases(), st.randoms(use_true_random=False))
def test_sum_is_that_of_rational_arithmetic_in_any_order(case: Case, random) -> None:
    order = [*range(len(case.clients))]
    update = case.accumulator(order).finish()
    random.shuffle(order)
    cuts = sorted(random.choices(order, k=3))
    parts = [order[: cuts[0]], order[cuts[0] : cuts[1]], order[cuts[1] :]]
    accumulators = [*map(case.accumulator, parts)]
    while len(accumulators) > 1:  # merged in some tree
        random.shuffle(accumulators)
        accumulators[0].merge(accumulators.pop())
    assert bits(accumulators[0].finish()) == bits(update)

    dtype, slack = case.state["m.w"].dtype, Fraction(1.001)
    weights = np.array([*map(Fraction, case.weights)], dtype=object)
    shares = weights / weights.sum()  # α_k
    start, *models = (exact(s["m.w"], s["n.v"]) for s in (case.state, *case.clients))
    rows = np.stack(models) - start  # Δ_k
    # A half-precision S would round to nothing beside its model.
    assert update.vector.dtype == torch.promote_types(dtype, torch.float32)
    assert update.buffers["b"].dtype == dtype
    s, mean, magnitude = exact(*update.mean_update.values()), shares @ rows, shares @ abs(rows)
    fine = PRECISION[dtype] * (magnitude + abs(mean)) + SMALLEST[dtype]
    assert (abs(s - mean) <= (grid_error(shares, rows) + fine) * slack).all()

    n, e = Fraction(update.mean_update_norm), Fraction(update.mean_client_norm)
    true_e = sum(share * root((row**2).sum()) for share, row in zip(shares, rows, strict=True))
    assert abs(e - true_e) <= true_e * 4 * PRECISION[dtype] + SMALLEST[torch.float64]
    # N is the norm of the S that is returned, less what rounding adds beyond proposition 1.
    true_n = root((s**2).sum())
    assert abs(n - min(true_n, e)) <= true_n * 4 * PRECISION[dtype] + UNDERFLOW
    assert n <= e
    assert all(x.mean_update_norm <= x.mean_client_norm for x in update.layers.values())

    # Buffers: weighted means, between minimum and maximum but for rounding.
    rows = np.stack([exact(client["b"]) for client in case.clients])
    found = exact(*update.buffers.values())
    mean, info, largest = shares @ rows, torch.finfo(dtype), abs(rows).max(initial=Fraction(0))
    beyond = abs(rows).max(axis=0) * Fraction(2) ** -52 + largest * Fraction(2) ** -128
    assert (rows.min(axis=0) - beyond <= found).all()
    assert (found <= rows.max(axis=0) + beyond).all()
    rounding = abs(mean) * Fraction(info.eps) + Fraction(info.smallest_normal * info.eps)
    rounding += UNDERFLOW
    assert (abs(found - mean) <= grid_error(shares, rows) * slack + rounding).all()


def test_huge_buffer_coarsens_no_other() -> None:
    """An attention mask becomes the least float32, beside variances."""
    least = torch.finfo(torch.float32).min
    acc = UpdateAccumulator({"mask": torch.tensor(0.0), "running_var": torch.ones(1)}, [])
    for mask, variance in ((least, 0.0123), (0.0, 0.0271)):
        acc.add({"mask": torch.tensor(mask), "running_var": torch.tensor([variance])}, 601)
    update = acc.finish()
    assert update.buffers["mask"].item() == least / 2
    assert update.buffers["running_var"].tolist() == pytest.approx([0.0197], rel=1e-6)
    assert (update.layers, update.mean_update_norm, update.mean_client_norm) == ({}, 0.0, 0.0)


@pytest.mark.parametrize(
    ("dtype", "values", "weight", "bound"),
    [
        (torch.float32, [torch.finfo(torch.float32).max] * 5, 0.7, 1e300),  # is its own norm
        (torch.float64, [1.3e154] * 5, 0.7, 1e300),  # whose squares add up to infinity
        (torch.float64, [1.0, 2.0**-44], 1.0, 1e300),  # down to 2^-48 of another client it counts
        (torch.float64, [1e150, 0.5], 1e-300, 1.0),  # a_k c / ‖Δ_k‖ is below the smallest double
    ],
)
def test_sum_is_right_at_the_ends_of_its_range(
    dtype: torch.dtype, values: list[float], weight: float, bound: float
) -> None:
    acc = UpdateAccumulator({"w": torch.zeros(1, dtype=dtype)}, ["w"], bound)
    for value in values:
        assert acc.add({"w": torch.tensor([value], dtype=dtype)}, weight)
    update, counted = acc.finish(), [min(value, bound) for value in values]
    mean, square = fmean(counted), sum(value**2 / len(values) for value in counted)
    assert update.mean_update["w"].item() == pytest.approx(mean, rel=1e-15)
    norms = (update.mean_update_norm, update.mean_client_norm, update.mean_client_square)
    assert norms == pytest.approx((mean, mean, square), rel=1e-12)


def test_mean_of_the_largest_buffers_is_finite() -> None:
    """Their sum is not, nor would be the quotient of rounded sums under such weights."""
    least = torch.tensor([1.0, 0.75], dtype=torch.float64) * torch.finfo(torch.float64).min
    acc = UpdateAccumulator({"mask": torch.zeros_like(least)}, [])
    for weight in (0.9999999999999997, 0.12499999999999992):
        assert acc.add({"mask": least}, weight)
    torch.testing.assert_close(acc.finish().buffers["mask"], least, rtol=1e-15, atol=0.0)


def test_sum_with_a_client_that_did_not_move_is_exact() -> None:
    """It may have any weight."""
    acc = UpdateAccumulator({"w": torch.zeros(2)}, ["w"])
    group = ModelState(torch.tensor([[0.0, 0.0], [3.0, 4.0]]), {})
    assert acc.add_group(group, [1e300, 1e-10]) == [True, True]
    assert acc.finish().mean_client_norm == pytest.approx(5e-310)


def test_sum_survives_one_client_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    assert BinnedSum.MAX_TERMS << BinnedSum._BITS < 1 << 63
    monkeypatch.setattr(BinnedSum, "MAX_TERMS", 2)
    acc = UpdateAccumulator({"w": torch.zeros(1)}, ["w"])
    for value in (1.0, 3.0):
        acc.add({"w": torch.tensor([value])}, 1.0)
    before = bits(acc.finish())
    with pytest.raises(UserError, match="3 clients: at most 2"):
        acc.add({"w": torch.tensor([8.0])}, 1.0)
    assert bits(acc.finish()) == before


def test_sum_bits_depend_on_no_threads() -> None:
    """With parameters longer than a chunk, and so long that PyTorch would share the work."""
    generator = torch.Generator().manual_seed(4)
    shapes = {"a.weight": (CHUNK + 70_001,), "b.weight": (30, 1001), "bn.mean": (100_001,)}

    def state() -> dict[str, Tensor]:
        return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}

    start, clients, results = state(), [state() for _ in range(3)], set()
    for count in (1, 3, 7):
        acc = UpdateAccumulator(start, ["a.weight", "b.weight"])
        with on_threads(count):
            for k, client in enumerate(clients):
                acc.add(client, 1.0 + 0.3 * k)
            results.add(bits(acc.finish()))
    assert len(results) == 1


def test_pieces_are_handled_on_one_thread() -> None:
    """The thread has its number again, also where a piece raises."""
    with on_threads(2):
        seen = [torch.get_num_threads() for _ in pieces(2 * CHUNK, torch.device("cpu"))]
        with pytest.raises(ZeroDivisionError):
            _ = [1 / where.start for where in pieces(2 * CHUNK, torch.device("cpu"))]
        assert (*seen, torch.get_num_threads()) == (1, 1, 2)
