"""The y axes of figures: linear from 0, logarithmic, and accuracy by the logarithm of the error."""

import math
from typing import Any, Literal, get_args

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullLocator

from fednnnn_plugin.errors import check_known

Scale = Literal["error", "linear"]


def log_axis(ax: Axes) -> None:
    """A logarithmic y axis that spans a factor of 2.5 or more, so that it has marks.

    Linear where something is negative, or nothing positive.
    """
    limits = [each.dataLim for each in ax.get_shared_y_axes().get_siblings(ax)]
    if min(each.y0 for each in limits) < 0.0 or min(each.minposy for each in limits) == math.inf:
        linear_axis(ax)
        return
    ax.set_yscale("log", nonpositive="clip")
    ax.autoscale(axis="y")
    low, high = map(float, ax.get_ylim())
    room = max(1.0, 1.6 / math.sqrt(high / low))
    ax.set_ylim(low / room, high * room)
    # Over many decades the locator has no place for more than powers of ten, and gives none.
    subs = (1.0, 2.0, 5.0) if high / low < 1e4 else (1.0,)
    ax.yaxis.set_major_locator(LogLocator(subs=subs))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(_tick)


def _tick(value: float, _place: float) -> str:
    """A number as a reader writes it: 0.02, 5·10⁻⁵, 10⁻⁵."""
    digits, _, power = f"{value:g}".partition("e")
    powers = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    return f"{digits}·10{str(int(power)).translate(powers)}".removeprefix("1·") if power else digits


def linear_axis(ax: Axes, highest: float = math.inf) -> None:
    """A linear y axis, from 0 where that is near."""
    ax.autoscale(axis="y")
    low, high = ax.get_ylim()
    least = min(each.dataLim.y0 for each in ax.get_shared_y_axes().get_siblings(ax))
    near = least < 0.5 * high or low < 0.0
    ax.set_ylim(0.0 if least >= 0.0 and near else low, min(highest, high))
    ax.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    ax.yaxis.set_major_formatter("{x:g}")


def accuracy_axis(ax: Axes, scale: Scale | None = None) -> None:
    """Per cent by the logarithm of the error where the best passes 95, else linear.

    So 99.0 and 99.2 part. What is above 99.99 is drawn there: 100 has no logarithm. ``scale``
    asks for one of them.
    """
    if scale is not None:
        check_known("scale", scale, get_args(Scale))
    highest = max(each.dataLim.y1 for each in ax.get_shared_y_axes().get_siblings(ax))
    if (scale or ("error" if highest > 95.0 else "linear")) == "linear":
        linear_axis(ax, highest=100.0)
        return
    ax.set_ylabel(f"{ax.get_ylabel()}, error scale")
    errors = (100, 50, 20, 10, 5, 2, 1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)

    def place(percent: Any) -> Any:
        return -np.log10(np.maximum(100.0 - percent, errors[-1]))

    ax.set_yscale("function", functions=(place, lambda place: 100.0 - 10.0**-place))
    ax.autoscale(axis="y")
    ax.set_ylim(max(0.0, ax.get_ylim()[0]))
    ax.yaxis.set_major_locator(FixedLocator([100.0 - error for error in errors]))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter("{x:.6g}")
