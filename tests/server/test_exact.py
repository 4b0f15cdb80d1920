"""Sums that do not depend on the order of their terms."""

import itertools
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.server.exact import ExactSum, FixedPointSum

FINITE = st.floats(allow_nan=False, allow_infinity=False)
CPU = torch.device("cpu")


def fixed_point(terms: list[tuple[float, list[float]]]) -> FixedPointSum:
    total = FixedPointSum(len(terms[0][1]), CPU)
    for weight, values in terms:
        x = torch.tensor(values, dtype=torch.float64)
        total.add(iter([(0, x)]), weight, max(map(abs, values)))
    return total


def mean(total: FixedPointSum, weight: float) -> Tensor:
    exact_weight = ExactSum()
    exact_weight.add(weight)
    result = torch.empty(total.size, dtype=torch.float64)
    total.mean_into([result], exact_weight)
    return result


def test_what_floating_point_addition_loses() -> None:
    total = ExactSum()
    for x in (1e300, 1.0, -1e300, 1e-300):
        total.add(x)
    assert total.as_fraction() == 1 + Fraction(1e-300)
    one = ExactSum()
    one.add(1.0)
    assert total / one == 1.0


@given(st.lists(st.tuples(FINITE, FINITE), max_size=5), FINITE.filter(bool))
def test_sums_of_products_are_exact(pairs: list[tuple[float, float]], divisor: float) -> None:
    total, other, by = ExactSum(), ExactSum(), ExactSum()
    for k, (x, y) in enumerate(pairs):
        (total if k % 2 else other).add(x, y)
    total.units += other.units
    expected = sum((Fraction(x) * Fraction(y) for x, y in pairs), Fraction(0))
    assert total.as_fraction() == expected
    by.add(divisor)
    quotient = expected / Fraction(divisor)
    if abs(quotient) < Fraction(2) ** 1023:
        assert total / by == float(quotient)


def test_the_grid_keeps_2_to_the_minus_32_of_the_largest_element() -> None:
    """Whatever the scale of the term, below the powers of two where bins change and at them."""
    for exponent, below in itertools.product(range(-70, 70), (0.0, 2.0**-40)):
        largest = math.ldexp(1.0 - below, exponent)
        small = largest / 3
        got = mean(fixed_point([(1.0, [largest, small, -small])]), 1.0)
        error = (got - torch.tensor([largest, small, -small], dtype=torch.float64)).abs()
        assert error.max().item() <= largest * (2.0**-32 + 2.0**-50)


def test_rounding_is_symmetric() -> None:
    """Opposite terms cancel to nothing, ties included."""
    values = [1.0, 2.0**-33, 3 * 2.0**-33, 1 / 3, 2.0**-34]
    got = mean(fixed_point([(0.7, values), (0.7, [-x for x in values])]), 1.4)
    assert got.tolist() == [0.0] * len(values)


def test_small_terms_beside_a_huge_one() -> None:
    """2^-31 of the largest term is what float32 addition would lose, too."""
    terms = [(1.0, [1.0]), (1.0, [2.0**30]), (1.0, [2.0**70]), (1.0, [2.0**72])]
    results = {
        mean(fixed_point(list(order)), 1.0).item() for order in itertools.permutations(terms)
    }
    assert len(results) == 1
    assert results.pop() == pytest.approx(2.0**70 + 2.0**72, rel=2.0**-31)


@pytest.mark.parametrize("exponent", range(16))
def test_a_term_of_2_to_the_minus_30_of_another_is_kept(exponent: int) -> None:
    """Wherever between the powers of two at which bins change the larger one lies."""
    large = 2.0**exponent
    small = large * 2.0**-30
    kept = mean(fixed_point([(1.0, [small]), (1.0, [large])]), 1.0)
    assert kept.item() == large + small


def test_at_most_three_vectors_are_held() -> None:
    total = fixed_point([(1.0, [math.ldexp(1.0, e)]) for e in range(-200, 200, 7)])
    assert len(total.bins) <= 3
    assert sum(t.numel() * t.element_size() for t in total.bins.values()) <= 3 * 8


def doubled(term: tuple[float, list[float]], times: int) -> FixedPointSum:
    total = fixed_point([term])
    for _ in range(times):
        twin = FixedPointSum(total.size, CPU)
        twin.merge(total)
        total.merge(twin)
    return total


def test_the_fullest_sum_does_not_overflow() -> None:
    """As many terms as are admitted, each of the largest that its grid holds."""
    below_one = 1 - 2.0**-53
    total = doubled((below_one, [below_one, -below_one]), 14)
    terms = 1 << 14
    while terms < FixedPointSum.MAX_TERMS:
        x = torch.tensor([below_one, -below_one], dtype=torch.float64)
        total.add(iter([(0, x)]), below_one, below_one)
        terms += 1
    got = mean(total, float(FixedPointSum.MAX_TERMS)).tolist()
    assert got == pytest.approx([1.0, -1.0], rel=1e-9)


def test_more_terms_are_refused() -> None:
    total, half = doubled((1.0, [1.0]), 14), doubled((1.0, [1.0]), 13)
    total.merge(half)
    with pytest.raises(UserError, match="32767"):
        total.merge(half)
    assert total.terms == 3 << 13
    assert mean(total, 3.0 * 2**13).tolist() == [1.0]


def test_elements_are_where_their_chunks_say() -> None:
    total = FixedPointSum(5, CPU)
    chunks = [(3, [4.0, 5.0]), (0, [1.0, 2.0, 3.0])]
    total.add(iter((o, torch.tensor(x, dtype=torch.float64)) for o, x in chunks), 2.0, 5.0)
    assert mean(total, 1.0).tolist() == [2.0, 4.0, 6.0, 8.0, 10.0]
    outputs = [torch.empty(2), torch.empty(0), torch.empty(3, 1)]
    weight = ExactSum()
    weight.add(2.0)
    total.mean_into(outputs, weight)
    assert torch.cat([x.flatten() for x in outputs]).tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
