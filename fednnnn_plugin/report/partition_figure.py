"""The partition as a picture: label counts as stacked bars, and sizes by rank."""

from pathlib import Path

import numpy as np

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.report import style
from fednnnn_plugin.report.axes import (
    ABOVE,
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
from fednnnn_plugin.report.canvas import FORMATS, Area, Canvas, Line, Text, text_width
from fednnnn_plugin.report.partition_view import PartitionSummary
from fednnnn_plugin.report.scales import Linear, log_scale

BARS_WIDTH, SIZES_WIDTH = 320.0, 170.0
KEY_SQUARE, KEY_GAP, KEY_STEP = 7.0, 4.0, 10.5
DOT_RADIUS = 1.7
MANY_CLIENTS = 40


def plot_partition(summary: PartitionSummary, path: Path) -> None:
    """Write the picture as SVG, PDF or PNG, whichever the path ends in.

    Raises:
        UserError: another suffix, or a path that cannot be written.
    """
    allowed = [f".{kind}" for kind in FORMATS]
    if path.suffix.lower() not in allowed:
        raise UserError(f"--plot: {path} is not allowed; it must end in {' or '.join(allowed)}")
    partial = path.with_name(f".{path.stem}.partial{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draw_partition(summary).save(partial)
        partial.replace(path)
    except OSError as error:
        raise UserError(f"--plot: {path} cannot be written ({error.strerror})") from error
    finally:
        partial.unlink(missing_ok=True)


def draw_partition(summary: PartitionSummary) -> Canvas:
    """Two plots: what each client holds by class, and how the sizes fall with rank."""
    counts = summary.counts.astype(np.float64)
    sizes = np.sort(summary.sizes)[::-1].astype(np.float64)
    images = Linear(0.0, float(sizes.max()) * 1.04)
    by_rank = log_scale(sizes)
    names = [str(label) for label in summary.classes]
    widest = max(text_width("class"), *(text_width(name) + KEY_SQUARE + KEY_GAP for name in names))
    key_width = widest + 2 * KEY_GAP
    bars = Box(room_left(images), BELOW, BARS_WIDTH)
    ranks = Box(bars.right + key_width + 4.0 + room_left(by_rank), BELOW, SIZES_WIDTH)
    canvas = Canvas(ranks.right + 2 * EDGE, BELOW + PLOT_HEIGHT + ABOVE)
    draw_sheet(canvas)
    _draw_bars(canvas, bars, counts, images)
    _draw_key(canvas, bars, names)
    _draw_sizes(canvas, ranks, sizes, summary)
    return canvas


def _class_color(index: int, total: int) -> str:
    steps = len(style.CLASS_COLORS)
    return style.CLASS_COLORS[index if total <= steps else index * steps // total]


def _draw_bars(canvas: Canvas, box: Box, counts: Values, images: Linear) -> None:
    clients, classes = counts.shape
    x = Linear(-0.5, clients - 0.5, max_ticks=6, integer=True)
    draw_axes(canvas, box, x, images, "client", "images")
    canvas.items.append(Text(box.left, box.top + 7.0, "images of each class"))
    tops = counts.cumsum(axis=1)
    half = 0.5 if clients > MANY_CLIENTS else 0.4
    for index in range(classes):
        polygons = []
        for client in np.flatnonzero(counts[:, index]):
            sides = np.array([client - half, client + half, client + half, client - half])
            top = tops[client, index]
            bottom = top - counts[client, index]
            polygons.append(placed(box, sides, np.array([bottom, bottom, top, top]), x, images))
        if polygons:
            canvas.items.append(Area(polygons, _class_color(index, classes)))


def _draw_key(canvas: Canvas, box: Box, names: list[str]) -> None:
    left = box.right + KEY_GAP + 2.0
    step = min(KEY_STEP, (box.height - KEY_STEP) / len(names))
    above = box.bottom + step * len(names) + 3.0
    canvas.items.append(Text(left, above, "class", style.MUTED))
    for index, name in enumerate(names):
        # The first class at the bottom, as in the bars.
        middle = box.bottom + step * (index + 0.5)
        low, high = middle - KEY_SQUARE / 2, middle + KEY_SQUARE / 2
        right = left + KEY_SQUARE
        square = np.array([[left, low], [right, low], [right, high], [left, high]])
        canvas.items.append(Area([square], _class_color(index, len(names))))
        canvas.items.append(Text(right + KEY_GAP, middle, name, va="center"))


def _draw_sizes(canvas: Canvas, box: Box, sizes: Values, summary: PartitionSummary) -> None:
    positive = sizes[sizes > 0.0]
    ranks = np.arange(1, positive.size + 1, dtype=np.float64)
    x, y = log_scale(ranks), log_scale(positive)
    draw_axes(canvas, box, x, y, "rank of the client by size", "images")
    canvas.items.append(Text(box.left, box.top + 7.0, "sizes by rank"))
    if summary.exponent is not None:
        near = slice(0, summary.fitted)
        level = np.exp(np.mean(np.log(positive[near]) + summary.exponent * np.log(ranks[near])))
        ends = np.array([1.0, float(summary.fitted)])
        law = placed(box, ends, level * ends**-summary.exponent, x, y)
        canvas.items.append(Line(law, style.VERMILION, 1.1, (4.0, 2.0)))
        name = f"fitted exponent {summary.exponent:.2f}"
        if abs(summary.exponent) < 0.005:
            name = "all of one size"
        at = (box.right, box.top - 7.0)
        canvas.items.append(Text(*at, name, style.VERMILION, ha="right"))
    angle = np.linspace(0.0, 2.0 * np.pi, 12, endpoint=False)
    circle = DOT_RADIUS * np.column_stack([np.cos(angle), np.sin(angle)])
    centers = placed(box, ranks, positive, x, y)
    canvas.items.append(Area([center + circle for center in centers], style.BLUE))
