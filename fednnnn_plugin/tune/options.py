"""What a user says of a search: options of the command, arguments of the function, or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from fednnnn_plugin.errors import UserError, printable, shown
from fednnnn_plugin.report.study import MAX_POINTS, Grid, Metric, Plan

LEARNING_RATE_STEP = "learning-rate"  # the paper's Step 2; no method has such a name
_FORM = "must be numbers as in 0.5,0.7,1.0, or START:STOP:STEP as in 0.5:1.2:0.1"


def parse_grid(given: object) -> tuple[float, ...]:
    """Read ``START:STOP:STEP``, both ends included, values between commas, or a list of numbers.

    Decimal, so that 0.5:1.2:0.1 ends at 1.2 and its third value is 0.7.
    """
    text = ",".join(map(str, given)) if isinstance(given, list | tuple) else str(given)
    numbers = list(map(_number, text.split(":" if text.count(":") == 2 else ",")))
    if ":" in text:
        start, stop, step = numbers
        if step <= 0 or stop < start:
            raise ValueError("STEP must be above 0 and STOP at least START")
        last = min((stop - start) / step, Decimal(MAX_POINTS))
        numbers = [start + step * index for index in range(int(last) + 1)]
    grid = sorted(map(float, numbers))
    if not 0 < len(grid) <= MAX_POINTS or len(set(grid)) < len(grid):
        raise ValueError(f"must be 1 to {MAX_POINTS} values, each once")
    return tuple(grid)


def _number(text: object) -> Decimal:
    try:
        number = Decimal(str(text).strip())
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite() or abs(number.adjusted()) > 300:
        raise ValueError(_FORM)
    return number


def _plain_keys(grids: object) -> object:
    """Take ``train_args.beta`` for ``beta``."""
    if not isinstance(grids, dict):
        return grids
    plain = {str(key).removeprefix("train_args."): values for key, values in grids.items()}
    if len(plain) < len(grids):
        raise ValueError("a key is given twice")
    return plain


_GridValues = Annotated[tuple[float, ...], BeforeValidator(parse_grid)]


class Settings(BaseModel):
    """A plan's settings, grids by key; what is None is the default's, or the resumed study's."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    grids: Annotated[
        dict[str, _GridValues] | None, Field(min_length=1), BeforeValidator(_plain_keys)
    ] = None
    rounds: int | None = Field(default=None, ge=1, le=2**31 - 1)
    validation: float | None = Field(default=None, gt=0, lt=1)
    metric: Metric | None = None
    prune: bool | None = None
    paper: bool | None = None

    def updated(self, other: Settings) -> Settings:
        """Return these with what ``other`` sets in their place, grid by grid."""
        given: dict[str, Any] = {key: value for key, value in other if value is not None}
        if self.grids and other.grids:
            given["grids"] = {**self.grids, **other.grids}
        return self.model_copy(update=given)


def settings_of(plan: Plan) -> Settings:
    """Return the settings that make this plan."""
    grids: Grid = {key: values for step in plan.steps for key, values in step.grid.items()}
    given = plan.model_dump(include={"validation", "metric", "prune"})
    paper = any(step.name == LEARNING_RATE_STEP for step in plan.steps) or None
    return Settings(grids=grids, rounds=plan.steps[0].rounds, paper=paper, **given)


def checked_settings(values: Mapping[str, Any]) -> Settings:
    """Validate settings; a ``UserError`` has a line for each problem, by the command's option."""
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise UserError("\n".join(map(_line, error.errors()))) from None


def _line(entry: Any) -> str:
    option = printable(" ".join(map(str, entry["loc"][:2]))).replace("grids", "grid", 1)
    return f"--{option}: {shown(entry['input'])}: {entry['msg'].removeprefix('Value error, ')}"
