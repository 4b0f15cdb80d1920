"""What a user says of a search: a small YAML file, options of the command, or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.recipe.reading import NotReadableError, read_file, read_yaml
from fednnnn_plugin.recipe.wording import printable, shown
from fednnnn_plugin.report.study import METRICS, Metric, Plan
from fednnnn_plugin.tune.grid import parse_grid


def _plain_keys(grids: object) -> object:
    """Take ``train_args.beta`` for ``beta``."""
    if not isinstance(grids, dict):
        return grids
    plain = {str(key).removeprefix("train_args."): values for key, values in grids.items()}
    if len(plain) < len(grids):
        raise ValueError("a key is given twice")
    return plain


class Settings(BaseModel):
    """A search's settings; what is None is left to the defaults, or to the study resumed.

    Attributes:
        grids: by key of ``train_args``.
        rounds: of every trial.
        validation: share of the training images to hold out.
        metric: what is best.
        prune: stop trials that fall behind the median of the others.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    grids: Annotated[
        dict[str, Annotated[tuple[float, ...], BeforeValidator(parse_grid)]] | None,
        Field(min_length=1, description="a mapping of keys to grids, such as beta: '0.5:1.2:0.1'"),
        BeforeValidator(_plain_keys),
    ] = None
    rounds: int | None = Field(
        default=None, ge=1, le=2**31 - 1, description="a whole number of at least 1"
    )
    validation: float | None = Field(
        default=None, gt=0, lt=1, description="a number above 0 and below 1"
    )
    metric: Metric | None = Field(default=None, description=f"one of {', '.join(METRICS)}")
    prune: bool | None = Field(default=None, description="true or false")

    def updated(self, other: Settings) -> Settings:
        """Return these with what ``other`` sets in their place, grid by grid."""
        given: dict[str, Any] = {key: value for key, value in other if value is not None}
        if self.grids and other.grids:
            given["grids"] = {**self.grids, **other.grids}
        return self.model_copy(update=given)

    def differences(self, plan: Plan) -> list[str]:
        """Return a line for each of these that a plan has otherwise."""
        grids = {key: values for step in plan.steps for key, values in step.grid.items()}
        before = {"rounds": plan.steps[0].rounds, **plan.model_dump()}
        pairs = [
            (f"grid {key}", values, grids.get(key)) for key, values in (self.grids or {}).items()
        ]
        pairs += [(key, value, before[key]) for key, value in self if key != "grids"]
        return [
            f"{key}: {value}: the study has {stored}"
            for key, value, stored in pairs
            if value not in (None, stored)
        ]


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
        keys = ", ".join(Settings.model_fields)
        raise UserError(f"{where}: {shown(values)}: must be a mapping of {keys}")
    return checked_settings(values, f"{where}: ")


def checked_settings(values: Mapping[str, Any], where: str) -> Settings:
    """Validate settings; ``where`` stands before a key in an error's line, ``--`` of options.

    Raises:
        UserError: a line for each problem.
    """
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        lines = dict.fromkeys(_line(where, entry) for entry in error.errors())
        raise UserError("\n".join(lines)) from None


def _line(where: str, entry: Any) -> str:
    key, *inner = (printable(str(part)) for part in entry["loc"])
    if key not in Settings.model_fields:
        return f"{where}{key}: unknown key; must be one of {', '.join(Settings.model_fields)}"
    place = ".".join([key, *inner[:1]])
    place = f"--{place.replace('grids.', 'grid ')}" if where == "--" else where + place
    if entry["type"] == "value_error":
        return f"{place}: {shown(entry['input'])}: {entry['ctx']['error']}"
    return f"{place}: {shown(entry['input'])}: must be {Settings.model_fields[key].description}"
