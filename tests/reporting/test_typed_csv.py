"""Tables of known columns from CSV files."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fednnnn_plugin.reporting.typed_csv import read_typed_csv


@given(st.lists(st.floats(allow_infinity=False, allow_nan=False), min_size=1))
@example([0.1 + 0.2])  # which pandas before 3.1 alone reads as 0.3
def test_floats_have_the_bits_that_were_written(values):
    lines = "".join(f"{value!r},1\n" for value in values)
    table = read_typed_csv(f"value,round\n{lines},\n".encode(), {"value": float})
    assert table["value"].iloc[:-1].tolist() == values
    assert table["value"].isna().tolist() == [False] * len(values) + [True]


@pytest.mark.parametrize(
    ("text", "message"),
    [("value\nx\n", "'x'"), ("round\n1\n", "value"), ("", "No columns")],
)
def test_damaged_files_are_value_errors(text, message):
    with pytest.raises(ValueError, match=message):
        read_typed_csv(text.encode(), {"value": float})
