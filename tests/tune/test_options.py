"""What a user says of a search: grids and options."""

import pytest

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.report.study import MAX_POINTS
from fednnnn_plugin.tune.options import checked_settings, parse_grid


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("0.5:1.2:0.1", (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2)),  # no 0.7000000000000001
        ("0.01:0.11:0.02", (0.01, 0.03, 0.05, 0.07, 0.09, 0.11)),
        ("1:2:0.4", (1.0, 1.4, 1.8)),  # the end is not on it
        (" 1e-3, 5e-4 ,1", (0.0005, 0.001, 1.0)),
        ([0.8, 0.6], (0.6, 0.8)),
        (0.7, (0.7,)),
    ],
)
def test_grid_by_hand(text: object, values: tuple[float, ...]) -> None:
    assert parse_grid(text) == values


def test_settings_updated_grid_by_grid() -> None:
    grids = {"train_args.beta": "0.5:0.7:0.1", "gamma": "1:5:2"}
    stored = checked_settings({"grids": grids, "rounds": 5, "prune": True})
    settings = stored.updated(checked_settings({"grids": {"beta": "0.9"}}))
    assert settings.grids == {"beta": (0.9,), "gamma": (1.0, 3.0, 5.0)}
    assert (settings.rounds, settings.prune, settings.metric) == (5, True, None)


MANY = ",".join(map(str, range(MAX_POINTS + 1)))


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        *(({"grids": {"beta": grid}}, "--grid beta: ") for grid in ([], [True], "", None, True)),
        *(({"grids": {"beta": grid}}, "--grid beta: ") for grid in ("1:2:0", "1,1.0", "1:nan:1")),
        *(({"grids": {"beta": grid}}, "--grid beta: ") for grid in ("1e999999", MANY)),
        ({"grids": {"beta": 0.5, "train_args.beta": 0.6}}, "--grid: .*given twice"),
        ({"validation": 1.0}, "--validation: 1.0: "),
        ({"rounds": "3"}, "--rounds: '3': "),
        ({"metric": "loss"}, "--metric: 'loss': .*best_accuracy"),
    ],
)
def test_bad_settings_are_one_line(settings: dict[str, object], line: str) -> None:
    with pytest.raises(UserError, match=f"^{line}") as caught:
        checked_settings(settings)
    assert "\n" not in str(caught.value)
