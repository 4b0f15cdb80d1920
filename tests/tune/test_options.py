"""What a user says of a search: its options."""

import numpy as np
import pytest

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.report.study import MAX_POINTS
from fednnnn_plugin.tune.options import checked_options, parse_grid


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("0.5:1.2:0.1", (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2)),  # no 0.7000000000000001
        ("0.01:0.11:0.02", (0.01, 0.03, 0.05, 0.07, 0.09, 0.11)),
        ("1:2:0.4", (1.0, 1.4, 1.8)),  # the end is not on it
        (" 1e-3, 5e-4 ,1", (0.0005, 0.001, 1.0)),
        ([0.8, 0.6], (0.6, 0.8)),
        (0.7, (0.7,)),
        (np.array([0.8, 0.6]), (0.6, 0.8)),
    ],
)
def test_grid_by_hand(text: object, values: tuple[float, ...]) -> None:
    assert parse_grid(text) == values


MANY = ",".join(map(str, range(MAX_POINTS + 1)))


@pytest.mark.parametrize(
    ("given", "start"),
    [
        *(({"grid": {"beta": bad}}, "--grid beta: ") for bad in ([], [True], "", None, True)),
        *(({"grid": {"beta": bad}}, "--grid beta: ") for bad in ("1:2:0", "1,1.0", "1:nan:1")),
        *(({"grid": {"beta": bad}}, "--grid beta: ") for bad in ("1e999999", MANY)),
        ({"grid": {"beta": 0.5, "train_args.beta": 0.6}}, "--grid: a key is given twice"),
        ({"grid": 3}, "--grid: 3: "),
        ({"rounds": "3"}, "--rounds: '3': "),
        ({"validation": 1.0}, "--validation: 1.0: "),
        *(({"seeds": bad}, "--seeds: ") for bad in ("", "1;2", "1,1", [1, 1], [], 3)),
        *(({"seeds": bad}, "--seeds") for bad in ([True], [-1], ["1"], "0,4294967296")),
        ({"metric": "loss"}, "--metric: 'loss': "),
        ({"jobs": "2"}, "--jobs: '2': "),
        ({"study": 3}, "--study: 3: "),
        ({"overrides": 3}, "--overrides: 3: "),
        ({"allow_code": "yes"}, "--allow-code: 'yes': "),
    ],
)
def test_wrong_option_is_one_line(given: dict[str, object], start: str) -> None:
    with pytest.raises(UserError) as caught:
        checked_options(given)
    assert str(caught.value).startswith(start)
    assert "\n" not in str(caught.value)
