"""Line charts of one or more panels side by side, with a key at the right of the last."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fednnnn_plugin.report import style
from fednnnn_plugin.report.axes import (
    ABOVE,
    ABOVE_UNTITLED,
    BELOW,
    EDGE,
    PLOT_HEIGHT,
    Box,
    draw_axes,
    draw_sheet,
    placed,
    room_left,
)
from fednnnn_plugin.report.canvas import Area, Canvas, Line, Text, fitted, text_width
from fednnnn_plugin.report.scales import Linear, Scale, number_text
from fednnnn_plugin.report.style import LineStyle

Values = npt.NDArray[np.float64]

ONE_PLOT_WIDTH = 250.0
PLOT_WIDTH = {2: 120.0, 3: 165.0}
NARROW_PLOT_WIDTH = 104.0
GAP = 14.0
PANELS_PER_ROW = 5
KEY_SAMPLE, KEY_GAP, KEY_STEP, KEY_WIDTH = 16.0, 4.0, 10.5, 160.0
FEW_POINTS = 15


@dataclass(frozen=True, eq=False)
class Series:
    """One line: x and y [n], NaN left out; a band from low to high where there is one."""

    label: str
    look: LineStyle
    x: Values
    y: Values
    low: Values | None = None
    high: Values | None = None


@dataclass(frozen=True, eq=False)
class Panel:
    """One plot: its series, and reference values with their names."""

    title: str
    series: tuple[Series, ...]
    references: tuple[tuple[float, str], ...] = ()


def draw_panels(panels: Sequence[Panel], y_label: str, y: Scale, *, key: bool = True) -> Canvas:
    """Draw panels that share both axes; x is the round.

    Args:
        panels: at least one; rows of five.
        y_label: the quantity with its unit, written up the left side.
        y: the scale of all panels.
        key: name series and references at the right, beside the ends of the last panel's lines.
    """
    columns = min(len(panels), PANELS_PER_ROW)
    rows = -(-len(panels) // PANELS_PER_ROW)
    width = ONE_PLOT_WIDTH if columns == 1 else PLOT_WIDTH.get(columns, NARROW_PLOT_WIDTH)
    left = room_left(y)
    labels = _labels(panels) if key else []
    key_width = max((text_width(name) for name, _, _ in labels), default=0.0)
    right = KEY_GAP * 2 + KEY_SAMPLE + key_width + EDGE if labels else EDGE + 4.0
    above = ABOVE if any(panel.title for panel in panels) else ABOVE_UNTITLED
    row_height = above + PLOT_HEIGHT + BELOW
    canvas = Canvas(left + columns * (width + GAP) - GAP + right, rows * row_height)
    draw_sheet(canvas)
    x = Linear(0.0, _last_round(panels), max_ticks=6 if columns == 1 else 4, integer=True)
    for index, panel in enumerate(panels):
        row, column = divmod(index, PANELS_PER_ROW)
        bottom = (rows - 1 - row) * row_height + BELOW
        box = Box(left + column * (width + GAP), bottom, width)
        draw_axes(canvas, box, x, y, "round", y_label if column == 0 else None)
        _draw_panel(canvas, box, panel, x, y)
        if labels and index == len(panels) - 1:
            _draw_key(canvas, box, labels, y)
    return canvas


def _labels(panels: Sequence[Panel]) -> list[tuple[str, LineStyle, float]]:
    """What to name, each once: its look, and the value where its line ends (in the last panel)."""
    named: dict[str, tuple[str, LineStyle, float]] = {}
    for panel in panels:
        for value, name in panel.references:
            named[name] = (fitted(name, KEY_WIDTH), style.REFERENCE, value)
        for series in panel.series:
            known = series.y[~np.isnan(series.y)]
            end = float(known[-1]) if known.size else np.nan
            named[series.label] = (fitted(series.label, KEY_WIDTH), series.look, end)
    return list(named.values())


def _last_round(panels: Sequence[Panel]) -> float:
    return max((float(s.x[-1]) for p in panels for s in p.series if s.x.size), default=1.0)


def _draw_panel(canvas: Canvas, box: Box, panel: Panel, x: Linear, y: Scale) -> None:
    canvas.items.append(Text(box.left, box.top + 7.0, fitted(panel.title, box.width + GAP - 4.0)))
    for value, _ in panel.references:
        height = box.bottom + box.height * float(y.place(np.array([value]))[0])
        ends = np.array([[box.left, height], [box.right, height]])
        look = style.REFERENCE
        canvas.items.append(Line(ends, look.color, look.width, look.dash))
    for series in panel.series:
        _draw_band(canvas, box, series, x, y)
    for series in panel.series:
        points = placed(box, series.x, series.y, x, y)
        for piece in _unbroken(points):
            look = series.look
            if len(piece) > 1:
                canvas.items.append(Line(piece, look.color, look.width, look.dash))
            if len(piece) <= FEW_POINTS and len(points) <= FEW_POINTS:
                dots = [_dot(point, 1.6) for point in piece]
                canvas.items.append(Area(dots, look.color))


def _draw_band(canvas: Canvas, box: Box, series: Series, x: Linear, y: Scale) -> None:
    if series.low is None or series.high is None:
        return
    known = ~(np.isnan(series.low) | np.isnan(series.high))
    if known.sum() < 2:
        return
    floor = np.maximum(series.low[known], _lowest(y))
    low = placed(box, series.x[known], floor, x, y)
    high = placed(box, series.x[known], series.high[known], x, y)
    if np.isfinite(low).all() and np.isfinite(high).all():
        canvas.items.append(Area([np.vstack([low, high[::-1]])], series.look.color, 0.16))


def _lowest(y: Scale) -> float:
    return float(getattr(y, "low", -np.inf))


def _unbroken(points: Values) -> list[Values]:
    """Pieces between missing values."""
    known = ~np.isnan(points).any(axis=1)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], known, [False]]).astype(int)))
    return [points[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _dot(center: Values, radius: float) -> Values:
    angle = np.linspace(0.0, 2.0 * np.pi, 12, endpoint=False)
    circle: Values = center + radius * np.column_stack([np.cos(angle), np.sin(angle)])
    return circle


def _draw_key(
    canvas: Canvas, box: Box, labels: Sequence[tuple[str, LineStyle, float]], y: Scale
) -> None:
    places = y.place(np.array([value for _, _, value in labels]))
    ends = [box.bottom + box.height * float(place) for place in np.nan_to_num(places)]
    start = box.right + KEY_GAP + 2.0
    low, high = box.bottom + 4.0, box.top - 2.0
    step = min(KEY_STEP, (high - low) / max(1, len(ends) - 1))
    heights = spread_out(ends, step, low, high)
    for (name, look, _), height in zip(labels, heights, strict=True):
        sample = np.array([[start, height], [start + KEY_SAMPLE, height]])
        canvas.items.append(Line(sample, look.color, look.width, look.dash))
        beside = start + KEY_SAMPLE + KEY_GAP
        canvas.items.append(Text(beside, height, name, va="center"))


def spread_out(wanted: Sequence[float], step: float, low: float, high: float) -> list[float]:
    """Positions at least ``step`` apart, in the order wanted and as near to it as a sweep gets.

    They stay between ``low`` and ``high`` unless there are too many for that.
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    placed = [min(max(wanted[i], low), high) for i in order]
    for i in range(1, len(placed)):
        placed[i] = max(placed[i], placed[i - 1] + step)
    if placed and placed[-1] > high:
        placed[-1] = high
        for i in range(len(placed) - 2, -1, -1):
            placed[i] = min(placed[i], placed[i + 1] - step)
    positions = [0.0] * len(wanted)
    for i, position in zip(order, placed, strict=True):
        positions[i] = position
    return positions


def ends_text(panel: Panel, digits: int = 3) -> str:
    """The last value of every series in words, for readers who do not see the picture."""
    parts = []
    for series in panel.series:
        known = np.flatnonzero(~np.isnan(series.y))
        if known.size:
            value = number_text(float(f"{series.y[known[-1]]:.{digits}g}"))
            parts.append(f"{series.label or panel.title} {value}")
    return ", ".join(parts)
