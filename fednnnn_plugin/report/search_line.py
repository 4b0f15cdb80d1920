"""A search over one value as a line."""

from collections.abc import Mapping, Sequence

import numpy as np

from fednnnn_plugin.report import style
from fednnnn_plugin.report.axes import (
    ABOVE_UNTITLED,
    BELOW,
    EDGE,
    PLOT_HEIGHT,
    Box,
    Values,
    draw_axes,
    draw_sheet,
    placed,
    room_left,
)
from fednnnn_plugin.report.canvas import Area, Canvas, Line, Text, text_width
from fednnnn_plugin.report.scales import Linear, Scale, linear_scale, log_scale, number_text
from fednnnn_plugin.report.studies import Metric

LINE_WIDTH = 250.0
# A grid that spans this ratio is laid out in equal ratios, not in equal steps.
WIDE_GRID = 30.0
TICK_GAP = 3.0


def draw_line(
    grid: Sequence[float],
    values: Mapping[float, float],
    ended: Sequence[float],
    best: float | None,
    x_label: str,
    metric: Metric,
) -> Canvas:
    """The metric over one value of the grid.

    Args:
        grid: every value searched.
        values: the metric by value, where a trial finished.
        ended: values of which all trials were pruned or failed: crosses on the base line.
        best: the value to mark.
        x_label: the value's name.
        metric: what is drawn.
    """
    x = _GridScale(grid, LINE_WIDTH)
    known = np.array(sorted(values))
    heights = np.array([values[value] * metric.factor for value in known], dtype=np.float64)
    y = linear_scale(heights)
    if not metric.lower_is_better:
        y = Linear(max(0.0, y.low), min(100.0, y.high))
    box = Box(room_left(y), BELOW, LINE_WIDTH)
    canvas = Canvas(box.right + EDGE + 8.0, BELOW + PLOT_HEIGHT + ABOVE_UNTITLED)
    draw_sheet(canvas)
    draw_axes(canvas, box, x, y, x_label, f"{metric.name} ({metric.unit})")
    for value in ended:
        across = box.left + box.width * float(x.place(np.array([value]))[0])
        canvas.items.append(Text(across, box.bottom + 6.0, "×", style.MUTED, ha="center"))
    points = placed(box, known, heights, x, y)
    if len(points) > 1:
        canvas.items.append(Line(points, style.BLUE, 1.4))
    if len(points):
        canvas.items.append(Area([_disc(point, 2.0) for point in points], style.BLUE))
    if best is not None:
        (center,) = placed(
            box, np.array([best]), np.array([values[best] * metric.factor]), x, y
        )  # fmt: skip
        canvas.items.append(Area([_disc(center, 3.0)], style.VERMILION))
        ring = _disc(center, 5.5)
        canvas.items.append(Line(np.vstack([ring, ring[:1]]), style.VERMILION, 1.2))
    return canvas


class _GridScale:
    """The scale of one value searched: its ticks are values of the grid."""

    def __init__(self, grid: Sequence[float], width: float) -> None:
        self._grid = np.sort(np.array(grid, dtype=np.float64))
        self._width = width
        low, high = float(self._grid[0]), float(self._grid[-1])
        room = (high - low) * 0.04 or abs(low) * 0.1 or 1.0
        wide = low > 0.0 and high / low >= WIDE_GRID
        self._scale: Scale = log_scale(self._grid) if wide else Linear(low - room, high + room)

    def place(self, values: Values) -> Values:
        return self._scale.place(values)

    def ticks(self) -> list[tuple[float, str]]:
        """Every value, or every second, third ... one where their names would touch."""
        named = [(float(value), number_text(float(value))) for value in self._grid]
        places = self.place(self._grid) * self._width
        for step in range(1, len(named)):
            shown, at = named[::step], places[::step]
            halves = np.array([text_width(name) / 2 for _, name in shown])
            if (np.diff(at) >= halves[:-1] + halves[1:] + TICK_GAP).all():
                return shown
        return named[:1]


def _disc(center: Values, radius: float) -> Values:
    angle = np.linspace(0.0, 2.0 * np.pi, 24, endpoint=False)
    disc: Values = center + radius * np.column_stack([np.cos(angle), np.sin(angle)])
    return disc
