from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednnnn_plugin.report.panel import spread_out
from fednnnn_plugin.report.scales import (
    Linear,
    Log,
    Nines,
    accuracy_scale,
    linear_scale,
    log_scale,
    number_text,
    percent_scale,
)


def test_linear_by_hand() -> None:
    scale = Linear(0.0, 50.0)
    assert scale.place(np.array([-1.0, 0.0, 25.0, 50.0, 99.0])).tolist() == [0, 0, 0.5, 1, 1]
    assert scale.ticks() == [(float(v), str(v)) for v in (0, 10, 20, 30, 40, 50)]


def test_log_by_hand() -> None:
    scale = Log(0.01, 100.0)
    np.testing.assert_allclose(
        scale.place(np.array([0.01, 1.0, 100.0, 1e9, 0.0, -1.0])), [0, 0.5, 1, 1, np.nan, np.nan]
    )
    assert [name for _, name in scale.ticks()] == ["0.01", "0.1", "1", "10", "100"]
    assert [name for _, name in Log(0.1, 1.0).ticks()] == ["0.1", "0.2", "0.5", "1"]


def test_nines_by_hand() -> None:
    scale = Nines(0.0, 99.99)
    np.testing.assert_allclose(
        scale.place(np.array([0.0, 90.0, 99.0, 99.9, 99.99, 100.0])), [0, 0.25, 0.5, 0.75, 1, 1]
    )
    assert {"90", "99", "99.9"} <= {name for _, name in scale.ticks()}


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (-0.5, "−0.5"), (1e-5, "10⁻⁵"), (2e-5, "2·10⁻⁵"), (1e7, "10⁷"), (0.25, "0.25")],
)
def test_numbers_as_written(value: float, text: str) -> None:
    assert number_text(value) == text


def test_accuracies_near_the_top_are_parted() -> None:
    assert isinstance(accuracy_scale(np.array([10.0, 99.0, 99.2])), Nines)
    assert isinstance(accuracy_scale(np.array([10.0, 84.7])), Linear)
    assert isinstance(accuracy_scale(np.array([100.0, 100.0])), Nines)


finite = st.floats(-1e12, 1e12)


@given(st.lists(finite | st.just(float("nan")), max_size=30))
def test_any_values_get_a_scale_that_holds_them(values: list[float]) -> None:
    array = np.array(values, dtype=np.float64)
    percent = np.clip(array, 0.0, 100.0)
    for scale, shown in (
        (linear_scale(array), array),
        (linear_scale(array, floor=0.0), np.maximum(array, 0.0)),
        (log_scale(array), array[array > 0.0]),
        (accuracy_scale(percent), percent),
        (percent_scale(percent), percent),
    ):
        known = np.sort(shown[~np.isnan(shown)])
        placed = scale.place(known)
        assert ((placed >= 0.0) & (placed <= 1.0)).all()
        assert (np.diff(placed) >= 0.0).all()
        for value, name in scale.ticks():
            assert name
            assert 0.0 <= scale.place(np.array([value]))[0] <= 1.0


@given(st.lists(st.floats(0.0, 100.0), max_size=9), st.floats(0.1, 12.0))
def test_key_entries_keep_apart_and_in_order(wanted: list[float], step: float) -> None:
    found = spread_out(wanted, step, 0.0, 100.0)
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    placed = [found[i] for i in order]
    assert all(b - a >= step - 1e-9 for a, b in pairwise(placed))
    assert all(-1e-9 <= position <= 100.0 + 1e-9 for position in found)


def test_key_entries_with_room_stay_where_their_lines_end() -> None:
    assert spread_out([80.0, 10.0, 40.0], 10.0, 0.0, 100.0) == [80.0, 10.0, 40.0]
    assert spread_out([50.0, 50.0], 10.0, 0.0, 100.0) == [50.0, 60.0]
    assert spread_out([99.0, 98.0], 10.0, 0.0, 100.0) == [100.0, 90.0]
