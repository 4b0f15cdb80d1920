from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.tune.grid import MAX_POINTS, parse_grid, parse_option


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("0.5:1.2:0.1", (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2)),  # no 0.7000000000000001
        ("0.02:0.15:0.01", tuple(round(0.01 * n, 2) for n in range(2, 16))),  # the paper's η
        ("0.01:0.11:0.02", (0.01, 0.03, 0.05, 0.07, 0.09, 0.11)),
        ("1:2:0.4", (1.0, 1.4, 1.8)),  # the end is not on it
        ("3:3:1", (3.0,)),
        ("0.7", (0.7,)),
        (" 1e-3, 5e-4 ,1", (0.0005, 0.001, 1.0)),
    ],
)
def test_by_hand(text: str, values: tuple[float, ...]) -> None:
    assert parse_grid(text, "here") == values


@given(start=st.integers(-50, 50), count=st.integers(1, 40), step=st.integers(1, 30))
def test_both_ends_are_included(start: int, count: int, step: int) -> None:
    stop = start + (count - 1) * step
    values = parse_grid(f"{start / 100}:{stop / 100}:{step / 100}", "here")
    assert len(values) == count
    assert values[0] == start / 100
    assert values[-1] == stop / 100


@pytest.mark.parametrize(
    "text",
    [
        *("", ",", "a", "0x1", "nan", "1e999999", "1,,2", "1,1.0", "1:2", "1:2:3:4"),
        *("1:2:0", "1:2:-1", "2:1:0.5", "1:inf:1", "1:nan:1", "0:1:1e-9"),
        ",".join(map(str, range(MAX_POINTS + 1))),
    ],
)
def test_what_is_no_grid_is_one_line(text: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_grid(text, "--grid beta")
    assert str(caught.value).startswith("--grid beta: ")
    assert "\n" not in str(caught.value)


@given(st.text(max_size=30))
def test_any_text_ends_in_a_grid_or_a_line(text: str) -> None:
    with suppress(UserError):
        values = parse_grid(text, "here")
        assert values
        assert sorted(set(values)) == list(values)


def test_an_option_names_its_key() -> None:
    assert parse_option("beta=0.5,0.6") == ("beta", (0.5, 0.6))
    for option in ("beta", "=1", ""):
        with pytest.raises(UserError, match=r"^--grid .*write KEY=VALUES"):
            parse_option(option)
