"""Grids of values, as people write them."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation

from fednnnn_plugin.errors import UserError, printable

MAX_POINTS = 1_000
Grid = dict[str, tuple[float, ...]]

_FORM = "must be numbers as in 0.5,0.7,1.0, or START:STOP:STEP as in 0.5:1.2:0.1"


def parse_grid(text: str, where: str) -> tuple[float, ...]:
    """Read ``START:STOP:STEP``, both ends included, or values between commas.

    Decimal, so that 0.5:1.2:0.1 ends at 1.2 and its third value is 0.7.

    Args:
        text: what was written.
        where: what an error's line starts with.

    Raises:
        UserError: it is neither, empty, or of more than ``MAX_POINTS`` values.
    """
    shown = f"{where}: {printable(text)!r}"
    if text.count(":") == 2:
        start, stop, step = (_number(part, shown) for part in text.split(":"))
        if step <= 0 or stop < start:
            raise UserError(f"{shown}: STEP must be above 0 and STOP at least START")
        if (stop - start) / step >= MAX_POINTS:
            raise UserError(f"{shown}: more than {MAX_POINTS} values")
        count = int((stop - start) / step) + 1
        return tuple(float(start + step * index) for index in range(count))
    return checked_values([float(_number(part, shown)) for part in text.split(",")], shown)


def checked_values(values: Sequence[float], shown: str) -> tuple[float, ...]:
    """Sort values into a grid.

    Raises:
        UserError: none, too many, or one of them twice.
    """
    if not values:
        raise UserError(f"{shown}: no value: {_FORM}")
    if len(values) > MAX_POINTS:
        raise UserError(f"{shown}: more than {MAX_POINTS} values")
    if len(set(values)) < len(values):
        raise UserError(f"{shown}: a value is given twice")
    return tuple(sorted(values))


def parse_option(option: str) -> tuple[str, tuple[float, ...]]:
    """Read ``--grid KEY=VALUES``.

    Raises:
        UserError: not of that form.
    """
    key, equals, text = option.partition("=")
    if not equals or not key.strip():
        raise UserError(f"--grid {printable(option)}: write KEY=VALUES, as in beta=0.5:1.2:0.1")
    return key.strip(), parse_grid(text.strip(), f"--grid {printable(key.strip())}")


def _number(text: str, shown: str) -> Decimal:
    try:
        number = Decimal(text.strip())
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite() or abs(number.adjusted()) > 300:
        raise UserError(f"{shown}: {_FORM}")
    return number
