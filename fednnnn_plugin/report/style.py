"""How the figures look: one colour and one line style a method, in every figure and on the page.

Colours are of Okabe and Ito's palette, told apart by colour-blind readers; of its eight those that
stand out from white paper come first. The dashes tell the methods apart in a black-and-white print.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class LineStyle:
    """Colour (sRGB), dash pattern (points on and off; empty is solid) and width in points."""

    color: str
    dash: tuple[float, ...]
    width: float


INK = "#1c2128"
MUTED = "#5d6672"
GRID = "#e3e6ea"
PAPER = "#ffffff"
REFERENCE = LineStyle("#6f7883", (1.0, 2.0), 1.1)

BLACK, ORANGE, SKY_BLUE, GREEN = "#101418", "#e69f00", "#56b4e9", "#009e73"
YELLOW, BLUE, VERMILION, PURPLE = "#f0e442", "#0072b2", "#d55e00", "#cc79a7"

SOLID: tuple[float, ...] = ()
_METHODS = {
    "FedAvg": LineStyle(BLACK, (4.0, 2.0), 1.1),
    "FedProx": LineStyle(PURPLE, (1.4, 1.4), 1.3),
    "Norm-Norm": LineStyle(BLUE, (7.0, 1.6, 1.4, 1.6), 1.2),
    "Momentum": LineStyle(GREEN, (8.0, 2.0), 1.2),
    "FedNNNN": LineStyle(VERMILION, SOLID, 1.5),
    "FedExP": LineStyle(SKY_BLUE, SOLID, 1.3),
    "FedAdam": LineStyle(ORANGE, SOLID, 1.3),
    "FedYogi": LineStyle(ORANGE, (5.0, 1.4, 1.4, 1.4, 1.4, 1.4), 1.3),
}
_OTHERS = (
    LineStyle(SKY_BLUE, (5.0, 1.4, 1.4, 1.4, 1.4, 1.4), 1.3),
    LineStyle(ORANGE, (3.0, 1.5), 1.3),
    LineStyle(SKY_BLUE, (3.0, 1.5), 1.3),
    LineStyle(ORANGE, (1.4, 1.4), 1.3),
)
_VARIANT_DASHES = ((), (5.0, 1.8), (1.4, 1.4), (7.0, 1.6, 1.4, 1.6), (2.5, 1.2), (9.0, 2.0))

# Ten label classes as stacked bars: steps of viridis, whose lightness rises all the way.
CLASS_COLORS = (
    *("#440154", "#482878", "#3e4a89", "#31688e", "#26828e"),
    *("#1f9e89", "#35b779", "#6dcd59", "#b4dd2c", "#fde725"),
)

FONT_SIZE = 8.0


def line_styles(labels: list[tuple[str, str]]) -> list[LineStyle]:
    """The style of each (method, variant), given in order.

    A method keeps its colour in every figure; its second and further variants get other dashes,
    methods that are neither the paper's nor our comparators get what remains, in turn.
    """
    others = list(dict.fromkeys(method for method, _ in labels if method not in _METHODS))
    seen: dict[str, int] = {}
    styles = []
    for method, _ in labels:
        base = _METHODS.get(method) or _OTHERS[others.index(method) % len(_OTHERS)]
        variant = seen.setdefault(method, 0)
        seen[method] += 1
        dash = base.dash if not variant else _VARIANT_DASHES[variant % len(_VARIANT_DASHES)]
        styles.append(LineStyle(base.color, dash, base.width))
    return styles
