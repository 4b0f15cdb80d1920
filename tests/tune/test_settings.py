"""What a user says of a search: grids, a settings file, options."""

from pathlib import Path

import pytest

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.report.study import MAX_POINTS
from fednnnn_plugin.tune.settings import checked_settings, parse_grid, read_settings


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
def test_a_grid_by_hand(text: object, values: tuple[float, ...]) -> None:
    assert parse_grid(text) == values


def test_settings_from_a_file_and_options_before_it(tmp_path: Path) -> None:
    file = tmp_path / "search.yaml"
    text = "grids: {train_args.beta: 0.5:0.7:0.1, gamma: 1:5:2}\nrounds: 5\nprune: true\n"
    file.write_text(text)
    settings = read_settings(file).updated(checked_settings({"grids": {"beta": "0.9"}}, "--"))
    assert settings.grids == {"beta": (0.9,), "gamma": (1.0, 3.0, 5.0)}
    assert (settings.rounds, settings.prune, settings.metric) == (5, True, None)


MANY = ",".join(map(str, range(MAX_POINTS + 1)))


@pytest.mark.parametrize(
    ("text", "key"),
    [
        *((f"grids: {{beta: {grid}}}", "grids.beta: ") for grid in ("[]", "[true]", "", "true")),
        *((f"grids: {{beta: '{grid}'}}", "grids.beta: ") for grid in ("1:2:0", "1,1.0", "1:nan:1")),
        *((f"grids: {{beta: '{grid}'}}", "grids.beta: ") for grid in ("1e999999", MANY)),
        ("grids: {beta: 0.5, train_args.beta: 0.6}", "grids: .*given twice"),
        ("validation: 1.0", "validation: 1.0: "),
        ("metric: loss", "metric: 'loss': .*best_accuracy"),
        ("grid: {}", "grid: .*unknown key; must be one of grids"),
    ],
)
def test_a_bad_settings_file_is_one_line(tmp_path: Path, text: str, key: str) -> None:
    file = tmp_path / "search.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=f"search.yaml: .*{key}") as caught:
        read_settings(file)
    assert "\n" not in str(caught.value)
