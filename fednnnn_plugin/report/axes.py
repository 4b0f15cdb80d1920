"""A plot's frame: where it lies on the canvas, its axes, ticks and labels."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fednnnn_plugin.report import style
from fednnnn_plugin.report.canvas import Area, Canvas, Line, Text, text_width
from fednnnn_plugin.report.scales import Scale

Values = npt.NDArray[np.float64]

# Points; around a plot there is room for ticks and a label, and above it for a title.
PLOT_HEIGHT = 150.0
BELOW, ABOVE, ABOVE_UNTITLED, EDGE = 30.0, 20.0, 9.0, 6.0


@dataclass(frozen=True)
class Box:
    """The rectangle that the values of a plot fill."""

    left: float
    bottom: float
    width: float
    height: float = PLOT_HEIGHT

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def top(self) -> float:
        return self.bottom + self.height


def room_left(y: Scale) -> float:
    """The width that a plot's ticks and label take on its left."""
    ticks = max((text_width(name) for _, name in y.ticks()), default=0.0)
    return EDGE + style.FONT_SIZE + 8.0 + ticks


def placed(box: Box, x_values: Values, y_values: Values, x: Scale, y: Scale) -> Values:
    """Points [n, 2] on the canvas; NaN where a value has no place on its scale."""
    across = box.left + box.width * x.place(x_values)
    up = box.bottom + box.height * y.place(y_values)
    return np.column_stack([across, up])


def draw_sheet(canvas: Canvas) -> None:
    """White paper under everything."""
    w, h = canvas.width, canvas.height
    sheet = np.array([[0.0, 0.0], [w, 0.0], [w, h], [0.0, h]])
    canvas.items.append(Area([sheet], style.PAPER))


def draw_axes(
    canvas: Canvas, box: Box, x: Scale, y: Scale, x_label: str, y_label: str | None
) -> None:
    """Level grid lines, a base line with ticks, and labels; none at the left without y_label."""
    for value, name in y.ticks():
        height = box.bottom + box.height * float(y.place(np.array([value]))[0])
        ends = np.array([[box.left, height], [box.right, height]])
        canvas.items.append(Line(ends, style.GRID, 0.6))
        if y_label is not None:
            at = (box.left - 4.0, height)
            canvas.items.append(Text(*at, name, style.MUTED, ha="right", va="center"))
    base = np.array([[box.left, box.bottom], [box.right, box.bottom]])
    canvas.items.append(Line(base, style.MUTED, 0.8))
    for value, name in x.ticks():
        across = box.left + box.width * float(x.place(np.array([value]))[0])
        tick = np.array([[across, box.bottom], [across, box.bottom - 2.5]])
        canvas.items.append(Line(tick, style.MUTED, 0.8))
        canvas.items.append(Text(across, box.bottom - 11.0, name, style.MUTED, ha="center"))
    middle = box.left + box.width / 2
    canvas.items.append(Text(middle, box.bottom - 22.5, x_label, ha="center"))
    if y_label is not None:
        across = box.left - room_left(y) + EDGE + style.FONT_SIZE * 0.8
        middle = box.bottom + box.height / 2
        canvas.items.append(Text(across, middle, y_label, ha="center", vertical=True))
