"""Grids of values, as people write them."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal, InvalidOperation

from fednnnn_plugin.report.study import MAX_POINTS

_FORM = "must be numbers as in 0.5,0.7,1.0, or START:STOP:STEP as in 0.5:1.2:0.1 (in a file quoted)"


def parse_grid(given: object) -> tuple[float, ...]:
    """Read ``START:STOP:STEP``, both ends included, values between commas, or a list of numbers.

    Decimal, so that 0.5:1.2:0.1 ends at 1.2 and its third value is 0.7. A bare number is none:
    YAML reads ``1:5:0.5`` as 3900.5.

    Raises:
        ValueError: it is none of them, has a value twice, none, or more than ``MAX_POINTS``.
    """
    if isinstance(given, str) and given.count(":") == 2:
        start, stop, step = map(_number, given.split(":"))
        if step <= 0 or stop < start:
            raise ValueError("STEP must be above 0 and STOP at least START")
        count = (stop - start) // step + 1 if (stop - start) / step < MAX_POINTS else MAX_POINTS + 1
        return _checked(start + step * index for index in range(int(count)))
    if isinstance(given, str):
        return _checked(map(_number, given.split(",")))
    if isinstance(given, list | tuple):
        return _checked(_number(str(value)) for value in given)
    raise ValueError(_FORM)


def _checked(values: Iterable[Decimal]) -> tuple[float, ...]:
    grid = sorted(map(float, values))
    if not 0 < len(grid) <= MAX_POINTS:
        raise ValueError(f"must be 1 to {MAX_POINTS} values")
    if len(set(grid)) < len(grid):
        raise ValueError("a value is given twice")
    return tuple(grid)


def _number(text: str) -> Decimal:
    try:
        number = Decimal(text.strip())
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite() or abs(number.adjusted()) > 300:
        raise ValueError(_FORM)
    return number
