"""What a user says of a search: a small YAML file, options of the command, or nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fednnnn_plugin.errors import UserError, printable
from fednnnn_plugin.recipe import Recipe, load_recipe
from fednnnn_plugin.recipe.reading import NotReadableError, read_file, read_yaml
from fednnnn_plugin.recipe.wording import shown
from fednnnn_plugin.tune.grid import Grid, checked_values, parse_grid
from fednnnn_plugin.tune.plan import METRICS, Metric, Plan, plan_steps

DEFAULT_VALIDATION = 1 / 6  # of MNIST's 60,000 training images 10,000, as many as are tested on
_ALLOWED = {
    "grids": "a mapping of keys to grids, such as beta: '0.5:1.2:0.1' (quoted) or beta: [0.5]",
    "rounds": "a whole number of at least 1",
    "validation": "a number above 0 and below 1",
    "metric": f"one of {', '.join(METRICS)}",
    "prune": "true or false",
}


class Settings(BaseModel):
    """A search's settings; what is None is left to the defaults, or to the study resumed.

    Attributes:
        grids: by key of ``train_args``. A bare number is none: YAML reads ``1:5:0.5`` as 3900.5.
        rounds: of every trial.
        validation: share of the training images to hold out.
        metric: what is best.
        prune: stop trials that fall behind the median of the others.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    grids: dict[str, str | list[float]] | None = None
    rounds: int | None = Field(default=None, ge=1, le=2**31 - 1)
    validation: float | None = Field(default=None, gt=0, lt=1)
    metric: Metric | None = None
    prune: bool | None = None

    def updated(self, other: Settings) -> Settings:
        """Return these with what ``other`` sets in their place, grid by grid."""
        given: dict[str, Any] = {k: v for k, v in other if v is not None}
        if self.grids and other.grids:
            given["grids"] = {**self.grids, **other.grids}
        return self.model_copy(update=given)

    def parsed_grids(self, where: str) -> Grid:
        """Return the grids as values.

        Raises:
            UserError: one is empty or malformed.
        """
        found = {}
        for key, values in (self.grids or {}).items():
            place = f"{where}{printable(key)}"
            if isinstance(values, list):
                found[key] = checked_values(values, f"{place}: {values}")
            else:
                found[key] = parse_grid(values, place)
        return found


def read_settings(path: Path) -> Settings:
    """Read a settings file.

    Raises:
        UserError: a line for each problem: file, key, value, what is allowed.
    """
    where = printable(str(path))
    try:
        values = read_yaml(read_file(path))
    except NotReadableError as error:
        raise UserError(f"{where}: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{where}: {shown(values)}: must be a mapping of {', '.join(_ALLOWED)}")
    settings = checked_settings(values, f"{where}: ")
    settings.parsed_grids(f"{where}: grids.")
    return settings


def checked_settings(values: Mapping[Any, Any], where: str) -> Settings:
    """Validate settings.

    Args:
        values: by name.
        where: what stands before the name in an error's line.

    Raises:
        UserError: a line for each problem.
    """
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        lines = dict.fromkeys(_line(where, entry) for entry in error.errors())
        raise UserError("\n".join(lines)) from None
    if settings.grids is not None and not settings.grids:
        raise UserError(f"{where}grids: empty; leave it out for the paper's grids")
    return settings


def make_plan(recipe: Recipe, settings: Settings) -> Plan:
    """Turn settings into the plan of a recipe's search.

    Raises:
        UserError: a grid that is malformed, empty, too large, or of a key that cannot be searched.
    """
    return Plan(
        plan_steps(recipe, settings.parsed_grids("--grid "), settings.rounds),
        DEFAULT_VALIDATION if settings.validation is None else settings.validation,
        settings.metric or "best_accuracy",
        bool(settings.prune),
    )


def settings_of(plan: Plan) -> Settings:
    """Return the settings that make this plan."""
    grids = {key: list(values) for step in plan.steps for key, values in step.grid.items()}
    return Settings(
        grids=dict(grids),
        rounds=plan.steps[0].rounds,
        validation=plan.validation,
        metric=plan.metric,
        prune=plan.prune,
    )


def check_values(path: Path, overrides: Sequence[str], plan: Plan) -> None:
    """Refuse a grid with a value that the recipe does not take, before anything is run.

    Raises:
        UserError: a line for each.
    """
    lines: list[str] = []
    for step in plan.steps:
        first = {key: values[0] for key, values in step.grid.items()}
        for key, values in step.grid.items():
            for value in values:
                changes = step.overrides({**first, key: value})
                try:
                    load_recipe(path, [*overrides, *changes])
                except UserError as error:
                    lines += str(error).replace("--set train_args.", "--grid ").splitlines()
    if lines:
        raise UserError("\n".join(dict.fromkeys(lines)))


def _line(where: str, entry: Any) -> str:
    key = printable(str(entry["loc"][0]))
    if key not in _ALLOWED:
        return f"{where}{key}: unknown key; must be one of {', '.join(_ALLOWED)}"
    return f"{where}{key}: {shown(entry['input'])}: must be {_ALLOWED[key]}"
