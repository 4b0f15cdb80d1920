"""Lines, areas and texts in points, drawn by matplotlib's own SVG, PDF and PNG renderers.

The figures are laid out by ``panel`` and handed to matplotlib as one artist, not as its ``Axes``:
in the three formats, a figure of one plot measured 100 ms with ``Axes``, and one of two plots 57 ms
this way. The four conditions of a data set make some seventy plots, and the command has 3 s.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.artist import Artist
from matplotlib.backend_bases import RendererBase
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, get_font
from matplotlib.path import Path as Outline
from matplotlib.textpath import text_to_path
from matplotlib.transforms import Affine2D

from fednnnn_plugin.report import style

Points = npt.NDArray[np.float64]

FORMATS = ("svg", "pdf", "png")
PNG_DPI = 144
_FONT = Path(__file__).parent / "fonts" / "Roboto-subset.ttf"


@dataclass(frozen=True, eq=False)
class Line:
    """An open line through points [n, 2]."""

    points: Points
    color: str
    width: float = 1.0
    dash: tuple[float, ...] = ()
    alpha: float = 1.0


@dataclass(frozen=True, eq=False)
class Area:
    """Filled polygons, each of points [n, 2]."""

    polygons: Sequence[Points]
    color: str
    alpha: float = 1.0


@dataclass(frozen=True)
class Text:
    """A text at a point: ``ha`` left, center or right; ``va`` baseline or center."""

    x: float
    y: float
    text: str
    color: str = style.INK
    size: float = style.FONT_SIZE
    ha: str = "left"
    va: str = "baseline"
    vertical: bool = False


@dataclass
class Canvas:
    """Something to draw on, width and height in points, the origin at the bottom left."""

    width: float
    height: float
    items: list[Line | Area | Text] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """Write the drawing in the format that the suffix names (svg, pdf or png)."""
        kind = path.suffix.lower().removeprefix(".")
        metadata: dict[str, Any] = {"Date": None} if kind == "svg" else {}
        if kind == "pdf":
            metadata = {"CreationDate": None}
        options: dict[str, Any] = {"pil_kwargs": {"compress_level": 2}} if kind == "png" else {}
        # Type 42 is what publishers ask for in a PDF; with glyphs as paths an SVG needs no font.
        with mpl.rc_context(
            {
                "pdf.fonttype": 42,
                "pdf.use14corefonts": False,
                "svg.fonttype": "path",
                "svg.hashsalt": "fednnnn",
                "savefig.bbox": "standard",
            }
        ):
            figure = Figure(figsize=(self.width / 72.0, self.height / 72.0))
            figure.add_artist(_Drawing(self))
            figure.savefig(path, format=kind, dpi=PNG_DPI, metadata=metadata, **options)


@cache
def _font(size: float) -> FontProperties:
    return FontProperties(fname=str(_FONT), size=size)


@cache
def _characters() -> frozenset[str]:
    return frozenset(map(chr, get_font(str(_FONT)).get_charmap()))


def drawable(text: str) -> str:
    """The text with a question mark for each character that the font lacks."""
    known = _characters()
    return "".join(char if char in known else "?" for char in text)


@cache
def text_width(text: str, size: float = style.FONT_SIZE) -> float:
    """Width in points."""
    width, _, _ = text_to_path.get_text_width_height_descent(drawable(text), _font(size), False)
    return float(width)


def fitted(text: str, width: float, size: float = style.FONT_SIZE) -> str:
    """The text, cut short with an ellipsis where it is wider than ``width`` points."""
    if text_width(text, size) <= width:
        return text
    kept = text
    while kept and text_width(kept + "…", size) > width:
        kept = kept[:-1]
    return kept.rstrip() + "…"


class _Drawing(Artist):
    """A canvas as one matplotlib artist."""

    def __init__(self, canvas: Canvas) -> None:
        super().__init__()
        self._canvas = canvas

    def draw(self, renderer: RendererBase) -> None:
        scale = float(np.asarray(renderer.points_to_pixels(1.0)))
        for item in self._canvas.items:
            if isinstance(item, Text):
                _draw_text(renderer, item, scale)
            else:
                _draw_shape(renderer, item, scale)


def _draw_shape(renderer: RendererBase, item: Line | Area, scale: float) -> None:
    context = renderer.new_gc()
    context.set_alpha(item.alpha)
    transform = Affine2D().scale(scale)
    # Hundredths of a point: the eye sees no more, and a smaller SVG loads faster.
    if isinstance(item, Line):
        context.set_foreground(item.color)
        context.set_linewidth(item.width)
        context.set_joinstyle("round")
        context.set_capstyle("butt")
        if item.dash:
            context.set_dashes(0, list(item.dash))
        renderer.draw_path(context, Outline(np.round(item.points, 2)), transform)
    else:
        context.set_linewidth(0)
        rounded = [np.round(polygon, 2) for polygon in item.polygons]
        outline = Outline.make_compound_path(
            *(Outline(np.vstack([polygon, polygon[:1]]), closed=True) for polygon in rounded)
        )
        renderer.draw_path(context, outline, transform, to_rgb(item.color))
    context.restore()


def _draw_text(renderer: RendererBase, item: Text, scale: float) -> None:
    text = drawable(item.text)
    context = renderer.new_gc()
    context.set_foreground(item.color)
    shift = {"left": 0.0, "center": 0.5, "right": 1.0}[item.ha] * text_width(text, item.size)
    # Half of a capital letter's height, so that a text stands level with a line beside it.
    drop = 0.36 * item.size if item.va == "center" else 0.0
    x, y = (item.x + drop, item.y - shift) if item.vertical else (item.x - shift, item.y - drop)
    if renderer.flipy():
        y = renderer.get_canvas_width_height()[1] / scale - y
    angle = 90.0 if item.vertical else 0.0
    renderer.draw_text(context, x * scale, y * scale, text, _font(item.size), angle)
    context.restore()
