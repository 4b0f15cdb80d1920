"""How the figures look: a style for matplotlib, a look for each method, and axes of our own.

Colours are of Okabe and Ito's palette, told apart by colour-blind readers; the dashes tell the
methods apart in a black-and-white print.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, ParamSpec, cast
from weakref import WeakKeyDictionary

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import get_font_names
from matplotlib.text import Annotation
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import offset_copy

from fednnnn_plugin.reporting.conditions import SINGLE_CLIENT
from fednnnn_plugin.reporting.runs import method_name

P = ParamSpec("P")
Look = dict[str, Any]  # as Axes.plot takes it
Palette = Mapping[str, str]
Scale = Literal["error", "linear"]
End = tuple[str, float | None, float, Look]  # a line's name, where it ends (None: at the edge)
_NAMED: WeakKeyDictionary[Axes, dict[str, tuple[End, Annotation]]] = WeakKeyDictionary()

PAPER, REFERENCE = "#ffffff", "#6f7883"
BLACK, ORANGE, SKY_BLUE, GREEN = "#101418", "#e69f00", "#56b4e9", "#009e73"
BLUE, VERMILION, PURPLE = "#0072b2", "#d55e00", "#cc79a7"

# After matplotlib's own font, whatever of these the machine has, for names in other scripts.
_SCRIPTS = re.compile(
    "(Noto Sans|Source Han Sans) (CJK )?(SC|JP)|WenQuanYi|SimHei|Microsoft YaHei|"
    "PingFang|Hiragino|Noto Sans (Devanagari|Arabic|Thai)|Unifont$"
)
STYLE: Any = {
    **mpl.rc_params_from_file(
        Path(__file__).with_name("fednnnn.mplstyle"), use_default_template=False
    ),
    "font.family": ["DejaVu Sans", *sorted(filter(_SCRIPTS.match, get_font_names())), "sans-serif"],
}
INK, MUTED, GRID = (STYLE[key] for key in ("axes.labelcolor", "axes.edgecolor", "grid.color"))


def _look(color: str, *dash: float, width: float = 1.3) -> Look:
    return {"color": color, "linestyle": (0, dash) if dash else "-", "linewidth": width}


REFERENCE_LOOK = _look(REFERENCE, 1.0, 2.0, width=1.1)
_METHODS = {
    "FedAvg": _look(BLACK, 4.0, 2.0, width=1.1),
    "FedProx": _look(PURPLE, 1.4, 1.4),
    "Norm-Norm": _look(BLUE, 7.0, 1.6, 1.4, 1.6),
    "Momentum": _look(GREEN, 8.0, 2.0),
    "FedNNNN": _look(VERMILION, width=1.5),
    "FedExP": _look(SKY_BLUE),
    "FedAdam": _look(ORANGE),
    "FedYogi": _look(ORANGE, 5.0, 1.4, 1.4, 1.4, 1.4, 1.4),
}
_DASHES = ((5.0, 1.8), (1.4, 1.4), (7.0, 1.6, 1.4, 1.6), (2.5, 1.2), (9.0, 2.0))
_OTHERS = [_look(color, *dash) for dash in _DASHES for color in (SKY_BLUE, ORANGE)]


def looks(runs: pd.DataFrame, palette: Palette | None = None) -> dict[str, Look]:
    """A look for each line of arranged runs: a method keeps its colour, whatever it is called.

    ``palette`` has custom colours, by the name of a line or of a method.
    """
    lines = runs.drop_duplicates("label")
    rules = lines.get("federated_optimizer", lines["method"])
    of_clients = lines.get("client_method", [None] * len(lines))
    pairs = zip(rules.fillna(lines["method"]), of_clients, strict=True)
    methods = [method_name(str(rule), client) for rule, client in pairs]
    others = [method for method in dict.fromkeys(methods) if method not in _METHODS]
    found = {}
    named = lines[["label", "method", "deal", "shade"]]
    for line, method in zip(named.itertuples(), methods, strict=True):
        look = _METHODS.get(method) or _OTHERS[others.index(method) % len(_OTHERS)]
        if line.deal == SINGLE_CLIENT:
            look = _look(REFERENCE, width=1.1)
        own = palette or {}
        color = own.get(line.label, own.get(line.method, look["color"]))
        found[line.label] = look | {"alpha": line.shade, "color": color}
    return found


def styled(draw: Callable[P, Axes]) -> Callable[P, Axes]:
    """Draw in ``STYLE``.

    The backend of a notebook makes matplotlib interactive where it is used first, in here: else
    only the first figure of a notebook would be shown.
    """

    @wraps(draw)
    def drawing(*args: P.args, **kwargs: P.kwargs) -> Axes:
        with mpl.rc_context(STYLE):
            ax = draw(*args, **kwargs)
            interactive = mpl.is_interactive()
        mpl.interactive(interactive)
        return ax

    return drawing


def axes(ax: Axes | None) -> Axes:
    """The Axes that is given, or a new one."""
    if ax is None:
        import matplotlib.pyplot as plt

        _, ax = plt.subplots(figsize=(5.2, 2.8), layout="constrained")
    return ax


def panels(width: float, height: float, rows: int, columns: int, **how: Any) -> list[Axes]:
    """The Axes of a new figure in our style, in inches."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        return list(figure.subplots(rows, columns, squeeze=False, **how).flat)


def figure_of(ax: Axes) -> Figure:
    return cast(Figure, ax.get_figure(root=True))


def drawn(ax: Axes, kind: str) -> bytes:
    """An Axes' figure as ``svg``, ``pdf`` or ``png``: same figure, same bytes."""
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    written = BytesIO()
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        # A glyph that no font here has: in an SVG the reader's may have it.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure_of(ax).savefig(written, format=kind, metadata=dates.get(kind))
    if kind != "svg":
        return written.getvalue()
    # Hundredths of a point: the eye sees no more. Texts stay as they are.
    return re.sub(rb"(\d\.\d\d)\d+(?=[^<>]*>)", rb"\1", written.getvalue())


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
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
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


def end_labels(ax: Axes, entries: Sequence[End]) -> None:
    """Name lines beside their ends; names that would touch are moved apart.

    Of what was drawn on the Axes before, the names are placed anew, too.
    """
    before = _NAMED.pop(ax, {}).values()
    there = [(entry, text) for entry, text in before if text in ax.texts]
    for _, text in there:
        text.remove()
    named = {entry[0]: entry for entry in (*(entry for entry, _ in there), *entries)}
    _NAMED[ax] = {}
    if (figure := figure_of(ax)).get_layout_engine() is None:
        figure.set_layout_engine("constrained")  # which leaves room for the names
    to_axes = ax.transData + ax.transAxes.inverted()
    right = ax.get_xlim()[1]
    at = [to_axes.transform((right if x is None else x, y)) for _, x, y, _ in named.values()]
    ends = [(min(float(x), 1.0), float(np.clip(y, 0.0, 1.0))) for x, y in at]
    height = ax.get_window_extent().height * 72.0 / figure.dpi
    beside = offset_copy(ax.transAxes, figure, x=24.0, units="points")
    size = min(8.0, max(4.5, height / max(1, len(named)) / 1.3))
    places = spread_out([y for _, y in ends], size * 1.3 / height)
    for (name, _, _, look), (x, y), place in zip(named.values(), ends, places, strict=True):
        arrow = {"arrowstyle": "-", "relpos": (0.0, 0.5), "shrinkA": 1.0, "shrinkB": 3.0, **look}
        arrow |= {"linestyle": ":", "linewidth": 0.5} if x < 1.0 else {}  # no line continues there
        shown = name if len(name) <= 34 else name[:33] + "…"
        how: Any = {"xy": (x, y), "xycoords": "axes fraction", "annotation_clip": False}
        how |= {"xytext": (1.0, place), "textcoords": beside, "va": "center"}
        text = ax.annotate(shown, fontsize=size, color=INK, arrowprops=arrow, **how)
        _NAMED[ax][name] = named[name], text


def spread_out(wanted: Sequence[float], step: float) -> list[float]:
    """Positions at least ``step`` apart, near to those wanted, below 1 if there is room."""
    order = np.argsort(wanted, kind="stable")
    slots = np.arange(len(order)) * step
    placed = np.maximum.accumulate(np.asarray(wanted, dtype=np.float64)[order] - slots) + slots
    positions = np.empty(len(order))
    positions[order] = np.minimum(placed, 1.0 - slots[::-1])  # none too near to the upper edge
    return list(map(float, positions))
