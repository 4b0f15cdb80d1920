"""A search over two values as a heat map."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_hex, to_rgb

from fednnnn_plugin.report import style
from fednnnn_plugin.report.axes import (
    ABOVE,
    BELOW,
    EDGE,
    Box,
    Values,
    draw_sheet,
)
from fednnnn_plugin.report.canvas import Area, Canvas, Line, Text, text_width
from fednnnn_plugin.report.scales import number_text
from fednnnn_plugin.report.studies import Metric
from fednnnn_plugin.report.study_table import Point, Trial

# A cell is as large as this where the grid is small; a large grid gets smaller ones.
CELL_WIDTH, CELL_HEIGHT, MOST_WIDTH, MOST_HEIGHT = 38.0, 24.0, 368.0, 260.0
CELL_PAD = 4.0
SMALL_SIZE = 6.5
BAR_WIDTH, BAR_STEPS = 9.0, 64
# Not the page's ink and paper, which change places in the dark: cells keep their colours.
DARK, LIGHT = "#000000", "#fefefe"


def draw_heat_map(
    across: Sequence[float],
    up: Sequence[float],
    trials: Mapping[Point, Trial],
    best: Point | None,
    labels: tuple[str, str],
    metric: Metric,
) -> Canvas:
    """A cell for each pair, its value written in it where there is room.

    Args:
        across, up: the values of the grid along the two sides.
        trials: by (across, up).
        best: the cell to frame.
        labels: names of the two sides.
        metric: what is drawn.
    """
    across, up = sorted(across), sorted(up)
    known = [trial.value for trial in trials.values() if trial.value is not None]
    digits = value_digits(known, metric)
    written = max((text_width(metric.text(value, digits)) for value in known), default=0.0)
    width = min(CELL_WIDTH, MOST_WIDTH / len(across))
    height = min(CELL_HEIGHT, MOST_HEIGHT / len(up))
    roomy = width >= written + CELL_PAD and height >= style.FONT_SIZE + CELL_PAD
    names = [number_text(value) for value in up]
    left = EDGE + style.FONT_SIZE + 8.0 + max(map(text_width, names))
    box = Box(left, BELOW, width * len(across), height * len(up))
    scale = _Colours(known, metric)
    bar = 0.0 if roomy else _bar_room(scale)
    # Room for the texts around, however few cells there are.
    title = f"{metric.name} ({metric.unit})"
    extent = max(box.width, text_width(labels[0]), text_width(title))
    tall = max(box.height, text_width(labels[1]))
    canvas = Canvas(left + extent + bar + EDGE + 4.0, BELOW + tall + ABOVE)
    draw_sheet(canvas)
    canvas.items.append(Text(box.left, box.bottom + tall + 7.0, title))
    for point, trial in _in_order(across, up, trials):
        cell = _cell(box, across.index(point[0]), up.index(point[1]), width, height)
        _draw_cell(canvas, cell, trial, scale, digits if roomy else None)
    if best is not None:
        frame = _cell(box, across.index(best[0]), up.index(best[1]), width, height)
        outline = np.vstack([frame, frame[:2]])
        canvas.items += [Line(outline, LIGHT, 4.2), Line(outline, style.VERMILION, 2.2)]
    _draw_sides(canvas, box, [number_text(value) for value in across], names, labels)
    if not roomy:
        _draw_bar(canvas, box, scale)
    return canvas


def value_digits(values: Sequence[float], metric: Metric) -> int:
    """Digits after the point that tell the values of a figure apart: fewer where they spread."""
    if metric.lower_is_better:
        return 3
    return 1 if not values or max(values) - min(values) >= 0.01 else 2


def colour_floor(values: Sequence[float], metric: Metric) -> float | None:
    """The value from which on all worse ones share a colour; None where there is none.

    One trial that diverged would otherwise take all difference from the colours of the others.
    """
    if not values:
        return None
    sign = -1.0 if metric.lower_is_better else 1.0
    goodness = sign * np.array(values)
    top, middle, worst = (float(q) for q in np.quantile(goodness, (1.0, 0.5, 0.0)))
    low = top - 3.0 * (top - middle)
    return sign * low if worst < low < top else None


class _Colours:
    """Viridis from the worst value shown to the best: lightness rises all the way."""

    def __init__(self, values: Sequence[float], metric: Metric) -> None:
        self.metric = metric
        ends = (min(values), max(values)) if values else (0.0, 1.0)
        self.worst, self.best = ends[::-1] if metric.lower_is_better else ends
        floor = colour_floor(values, metric)
        self.clipped = floor is not None
        self.worst = self.worst if floor is None else floor

    def __call__(self, value: float) -> str:
        if self.best == self.worst:
            return to_hex(colormaps["viridis"](0.5))
        place = (value - self.worst) / (self.best - self.worst)
        return to_hex(colormaps["viridis"](min(1.0, max(0.0, place))))


def _draw_cell(
    canvas: Canvas, cell: Values, trial: Trial | None, colours: _Colours, digits: int | None
) -> None:
    middle = (float(cell[:, 0].mean()), float(cell[:, 1].mean()))
    if trial is None:  # Not run yet.
        canvas.items.append(Line(np.vstack([cell, cell[:1]]), style.GRID, 0.8))
        return
    if trial.value is None:
        canvas.items.append(Area([cell], style.GRID))
        if digits is None or text_width(trial.state, SMALL_SIZE) > np.ptp(cell[:, 0]):
            diagonals = (cell[[0, 2]], cell[[1, 3]]) if trial.state == "failed" else (cell[[0, 2]],)
            canvas.items += [Line(ends, style.MUTED, 0.8) for ends in diagonals]
        else:
            canvas.items.append(
                Text(*middle, trial.state, style.MUTED, SMALL_SIZE, "center", "center")
            )
        return
    color = colours(trial.value)
    canvas.items.append(Area([cell], color))
    if digits is not None:
        text = colours.metric.text(trial.value, digits)
        canvas.items.append(Text(*middle, text, readable_on(color), ha="center", va="center"))


def readable_on(color: str) -> str:
    """Black or white, whichever has the higher contrast ratio (WCAG 2) on a colour."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
    luminance = float(np.dot(linear, (0.2126, 0.7152, 0.0722)))
    # The ratios (1.05 / (L + 0.05)) with white and ((L + 0.05) / 0.05) with black are equal here.
    return DARK if luminance + 0.05 > math.sqrt(1.05 * 0.05) else LIGHT


def _draw_sides(
    canvas: Canvas, box: Box, across: Sequence[str], up: Sequence[str], labels: tuple[str, str]
) -> None:
    width, height = box.width / len(across), box.height / len(up)
    every = math.ceil((max(map(text_width, across)) + 3.0) / width)
    for index in range(0, len(across), every):
        at = (box.left + width * (index + 0.5), box.bottom - 11.0)
        canvas.items.append(Text(*at, across[index], style.MUTED, ha="center"))
    every = math.ceil((style.FONT_SIZE + 1.0) / height)
    for index in range(0, len(up), every):
        at = (box.left - 4.0, box.bottom + height * (index + 0.5))
        canvas.items.append(Text(*at, up[index], style.MUTED, ha="right", va="center"))
    middle = box.left + max(box.width, text_width(labels[0])) / 2
    canvas.items.append(Text(middle, box.bottom - 22.5, labels[0], ha="center"))
    middle = box.bottom + max(box.height, text_width(labels[1])) / 2
    at = (EDGE + style.FONT_SIZE * 0.8, middle)
    canvas.items.append(Text(*at, labels[1], ha="center", vertical=True))


def _bar_names(colours: _Colours) -> tuple[str, str]:
    digits = value_digits([colours.worst, colours.best], colours.metric)
    low, high = (colours.metric.text(value, digits) for value in (colours.worst, colours.best))
    beyond = "≥ " if colours.metric.lower_is_better else "≤ "
    return (beyond + low if colours.clipped else low), high


def _bar_room(colours: _Colours) -> float:
    return 10.0 + BAR_WIDTH + 4.0 + max(map(text_width, _bar_names(colours)))


def _draw_bar(canvas: Canvas, box: Box, colours: _Colours) -> None:
    """What the colours mean, where the cells have no room for numbers: the best at the top."""
    left = box.right + 10.0
    right = left + BAR_WIDTH
    edges = np.linspace(box.bottom, max(box.top, box.bottom + 40.0), BAR_STEPS + 1)
    for index in range(BAR_STEPS):
        place = (index + 0.5) / BAR_STEPS
        low, high = edges[index], edges[index + 1]
        piece = np.array([[left, low], [right, low], [right, high], [left, high]])
        value = colours.worst + place * (colours.best - colours.worst)
        canvas.items.append(Area([piece], colours(value)))
    for height, name in zip((edges[0] + 3.0, edges[-1] - 3.0), _bar_names(colours), strict=True):
        canvas.items.append(Text(right + 4.0, height, name, style.MUTED, va="center"))


def _in_order(
    across: Sequence[float], up: Sequence[float], trials: Mapping[Point, Trial]
) -> list[tuple[tuple[float, float], Trial | None]]:
    return [((x, y), trials.get((x, y))) for y in up for x in across]


def _cell(box: Box, column: int, row: int, width: float, height: float) -> Values:
    left, bottom = box.left + column * width, box.bottom + row * height
    right, top = left + width, bottom + height
    return np.array([[left, bottom], [right, bottom], [right, top], [left, top]])
