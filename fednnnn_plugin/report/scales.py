"""Axis scales: where a value lies on an axis, which ticks it gets, and what they are called."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from matplotlib.ticker import MaxNLocator

Values = npt.NDArray[np.float64]

# The least distance of two labels, in heights of a panel.
MARK_GAP = 0.08


class Scale(Protocol):
    """A monotone map from the shown range onto [0, 1]; values outside go to its ends."""

    def place(self, values: Values) -> Values: ...

    def ticks(self) -> Sequence[tuple[float, str]]: ...


@dataclass(frozen=True)
class Linear:
    """Equal steps between two values."""

    low: float
    high: float
    max_ticks: int = 5
    integer: bool = False

    def place(self, values: Values) -> Values:
        placed: Values = np.clip((values - self.low) / (self.high - self.low), 0.0, 1.0)
        return placed

    def ticks(self) -> list[tuple[float, str]]:
        locator = MaxNLocator(self.max_ticks, steps=[1, 2, 2.5, 5, 10], integer=self.integer)
        slack = 1e-9 * (self.high - self.low)
        found = locator.tick_values(self.low, self.high)
        inside = [float(v) for v in found if self.low - slack <= v <= self.high + slack]
        return [(v, number_text(0.0 if abs(v) < slack else v)) for v in inside]


@dataclass(frozen=True)
class Log:
    """Equal ratios between two positive values; what is not positive is not shown."""

    low: float
    high: float

    def place(self, values: Values) -> Values:
        span = math.log10(self.high / self.low)
        with np.errstate(divide="ignore", invalid="ignore"):
            placed = np.clip(np.log10(values / self.low) / span, 0.0, 1.0)
        return np.where(values > 0.0, placed, np.nan)

    def ticks(self) -> list[tuple[float, str]]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        decades = math.log10(self.high / self.low)
        steps = (1.0, 2.0, 5.0) if decades < 2.2 else (1.0,)
        every = max(1, math.ceil((last - first) / 6))
        found = [step * 10.0**power for power in range(first, last + 1, every) for step in steps]
        inside = [v for v in found if self.low * 0.999999 <= v <= self.high * 1.000001]
        return [(v, number_text(v)) for v in inside]


@dataclass(frozen=True)
class Nines:
    """Accuracies in per cent by the logarithm of the error, so that 99.0 and 99.2 part."""

    low: float
    high: float

    def place(self, values: Values) -> Values:
        errors = np.maximum(100.0 - values, 100.0 - self.high)
        return 1.0 - Log(100.0 - self.high, 100.0 - self.low).place(errors)

    def ticks(self) -> list[tuple[float, str]]:
        # The plainest first: a mark too near one that is taken already is left out.
        marks = (90, 99, 99.9, 99.99, 50, 0, 95, 80, 99.5, 98, 99.95, 99.8, 99.98, 20)
        taken: dict[float, float] = {}
        for mark in (float(m) for m in marks if self.low <= m <= self.high):
            place = float(self.place(np.array([mark]))[0])
            if all(abs(place - other) >= MARK_GAP for other in taken.values()):
                taken[mark] = place
        return [(mark, number_text(mark)) for mark in sorted(taken)]


def number_text(value: float) -> str:
    """A tick's label, with a proper minus and 10⁻⁵ instead of 1e-05."""
    mantissa, _, power = f"{value:.6g}".partition("e")
    if power:
        raised = str(int(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        mantissa = f"10{raised}" if mantissa == "1" else f"{mantissa}·10{raised}"
    return mantissa.replace("-", "−")


def log_scale(values: Values, include: Sequence[float] = ()) -> Log:
    """A logarithmic scale with room around the positive ones of some values."""
    positive = np.concatenate([values[values > 0.0], np.asarray(include, dtype=np.float64)])
    if not positive.size:
        return Log(0.1, 1.0)
    # Far beyond any norm, and near enough to 1 that no quotient overflows.
    low, high = (float(v) for v in np.clip([positive.min(), positive.max()], 1e-100, 1e100))
    if high / low < 2.0:
        middle = math.sqrt(low * high)
        low, high = middle / 1.6, middle * 1.6
    margin = (high / low) ** 0.06
    return Log(low / margin, high * margin)


def linear_scale(values: Values, floor: float | None = None) -> Linear:
    """A linear scale with room around some values, but none below ``floor``."""
    known = values[~np.isnan(values)]
    if not known.size:
        return Linear(0.0, 1.0)
    low, high = float(known.min()), float(known.max())
    if floor is not None and low < floor + 0.5 * (high - floor):
        low = floor
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return Linear(low if low == floor else low - margin, high + margin)


def accuracy_scale(percent: Values) -> Linear | Nines:
    """By the logarithm of the error where the best passes 95 %, else linear."""
    known = percent[~np.isnan(percent)]
    if known.size and known.max() > 95.0:
        errors = 100.0 - known[known < 100.0]
        smallest = float(errors.min()) if errors.size else 1.0
        largest = float(errors.max()) if errors.size else 10.0
        # An accuracy of 100 % has no logarithm; it is drawn at the upper edge.
        return Nines(100.0 - min(100.0, largest * 1.1), 100.0 - smallest * 0.75)
    scale = linear_scale(known)
    return Linear(max(0.0, scale.low), min(100.0, scale.high))


def percent_scale(percent: Values) -> Linear:
    """A linear scale of per cent, from 0 where the values come near it."""
    scale = linear_scale(percent, floor=0.0)
    return Linear(scale.low, min(100.0, scale.high))
