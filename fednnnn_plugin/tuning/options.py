"""What a caller says of a search, as options of the command or arguments of the function."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from fednnnn_plugin.assembly.run import as_options
from fednnnn_plugin.errors import UserError, joined, printable, shown
from fednnnn_plugin.recipe.kinds import Seed
from fednnnn_plugin.reporting.study import MAX_POINTS, Metric, Plan

LEARNING_RATE_STEP = "learning-rate"  # the paper's Step 2; no method has such a name
_FORM = "must be numbers as in 0.5,0.7,1.0, or START:STOP:STEP as in 0.5:1.2:0.1"


def parse_grid(given: object) -> tuple[float, ...]:
    """Read ``START:STOP:STEP``, both ends included, values between commas, or numbers.

    Decimal, so that 0.5:1.2:0.1 ends at 1.2 and its third value is 0.7.
    """
    text = str(given)
    if isinstance(given, Iterable) and not isinstance(given, str):
        text = ",".join(map(str, given))
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


def _number(text: str) -> Decimal:
    try:
        number = Decimal(text.strip())
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite() or abs(number.adjusted()) > 300:
        raise ValueError(_FORM)
    return number


def _parse_seeds(given: object) -> object:
    """Read the command's numbers between commas; each once."""
    if isinstance(given, str):
        if not re.fullmatch(r"\d+(,\d+)*", given):
            raise ValueError("must be whole numbers between commas, as in 0,1,2")
        given = map(int, given.split(","))
    seeds = tuple(given) if isinstance(given, Iterable) else given
    if isinstance(seeds, tuple) and not 0 < len(set(seeds)) == len(seeds):
        raise ValueError("must be one seed or several different ones")
    return seeds


def _by_key(grids: object) -> object:
    """Divide the command's KEY=VALUES; take ``train_args.beta`` for ``beta``."""
    pairs: list[tuple[str, object]]
    if isinstance(grids, tuple):
        pairs = []
        for grid in grids:
            key, _, values = grid.partition("=")
            if not key.strip() or not values.strip():
                raise ValueError(f"{grid!r}: write KEY=VALUES, as in beta=0.5:1.2:0.1")
            pairs.append((key, values))
    elif isinstance(grids, Mapping):
        pairs = [(str(key), values) for key, values in grids.items()]
    else:
        return grids
    plain = {key.strip().removeprefix("train_args."): values for key, values in pairs}
    if len(plain) < len(pairs):
        raise ValueError("a key is given twice; put its values between commas")
    return plain


def _as_list(overrides: object) -> list[str]:
    if not isinstance(overrides, Mapping | Sequence):
        raise ValueError(
            "must be a mapping of section.key to values, or a list of section.key=value"
        )
    return as_options(overrides)


class Options(BaseModel):
    """What is asked of a search; what is None is the default's, or the resumed study's.

    The first ones make the plan, the others say where and how it is carried out.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    grid: Annotated[
        dict[str, Annotated[tuple[float, ...], BeforeValidator(parse_grid)]] | None,
        Field(min_length=1),
        BeforeValidator(_by_key),
    ] = None
    rounds: int | None = Field(default=None, ge=1, le=2**31 - 1)
    validation: float | None = Field(default=None, gt=0, lt=1)
    metric: Metric | None = None
    seeds: Annotated[tuple[Seed, ...] | None, BeforeValidator(_parse_seeds)] = None
    paper: bool | None = None
    prune: bool | None = None
    overrides: Annotated[list[str], BeforeValidator(_as_list)] = []
    study: Path | None = Field(default=None, strict=False)
    jobs: int = Field(default=1, ge=1)
    resume: bool = False
    allow_code: bool = False

    @property
    def planned(self) -> dict[str, object]:
        """What is given of the plan, each key's grid by itself; paper=False asks for nothing."""
        names = {"rounds", "validation", "metric", "seeds", "paper", "prune"}
        given = self.model_dump(include=names)
        given["paper"] = self.paper or None
        given |= {f"grid {key}": values for key, values in (self.grid or {}).items()}
        return {name: value for name, value in given.items() if value is not None}


def options_of(plan: Plan) -> Options:
    """Return the options that make this plan."""
    grid = {key: values for step in plan.steps for key, values in step.grid.items()}
    given = plan.model_dump(include={"validation", "metric", "prune", "paper"})
    return Options(grid=grid, rounds=plan.steps[0].rounds, seeds=plan.seeds or None, **given)


def checked_options(given: Mapping[str, object]) -> Options:
    """Validate options; a ``UserError`` has a line for each that is wrong."""
    try:
        return Options.model_validate(given)
    except ValidationError as error:
        raise UserError(joined(map(_line, error.errors()))) from None


def _line(entry: Any) -> str:
    name, *key = entry["loc"][:2]
    option = " ".join(["--" + name.replace("_", "-"), *(printable(part) for part in key)])
    value, allowed = entry["input"], entry["msg"].removeprefix("Value error, ")
    several = isinstance(value, Mapping | list | tuple)  # the message names which one
    return f"{option}: {'' if several else shown(value) + ': '}{allowed}"
