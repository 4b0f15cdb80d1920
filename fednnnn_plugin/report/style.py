"""How the figures look: a style for matplotlib, a look for each method, and axes of our own.

Colours are of Okabe and Ito's palette, told apart by colour-blind readers; the dashes tell the
methods apart in a black-and-white print.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import get_font_names
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from fednnnn_plugin.report.groups import SINGLE_CLIENT

P = ParamSpec("P")
T = TypeVar("T")
Look = dict[str, Any]  # as Axes.plot takes it
Values = npt.NDArray[np.float64]

INK, MUTED, GRID, PAPER, REFERENCE = "#1c2128", "#5d6672", "#e3e6ea", "#ffffff", "#6f7883"
BLACK, ORANGE, SKY_BLUE, GREEN = "#101418", "#e69f00", "#56b4e9", "#009e73"
BLUE, VERMILION, PURPLE = "#0072b2", "#d55e00", "#cc79a7"
_NAMES = {INK: "ink", MUTED: "muted", GRID: "grid", PAPER: "panel", REFERENCE: "reference"}
_NAMES |= {BLACK: "black", ORANGE: "orange", SKY_BLUE: "sky-blue", GREEN: "green"}
_NAMES |= {BLUE: "blue", VERMILION: "vermilion", PURPLE: "purple"}

# After matplotlib's own font, whatever of these the machine has, for names in other scripts.
_SCRIPTS = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Source Han Sans SC", "SimHei"),
    *("WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "Microsoft YaHei", "PingFang SC"),
    *("Hiragino Sans", "Noto Sans Devanagari", "Noto Sans Arabic", "Noto Sans Thai", "Unifont"),
)
_installed = frozenset(get_font_names())
STYLE: Any = {
    "font.family": ["DejaVu Sans", *(name for name in _SCRIPTS if name in _installed)],
    "font.size": 8.0,
    "axes.titlesize": 8.0,
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.labelcolor": INK,
    "axes.labelsize": 8.0,
    "axes.edgecolor": MUTED,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.facecolor": PAPER,
    "figure.facecolor": PAPER,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "ytick.major.size": 0.0,
    "xtick.major.size": 2.5,
    "legend.frameon": False,
    "figure.constrained_layout.w_pad": 0.07,
    "text.parse_math": False,  # a name may hold dollars
    "path.simplify_threshold": 0.3,
    "svg.fonttype": "none",  # the reader's own fonts draw the names, in whatever script
    "svg.hashsalt": "fednnnn",
    "pdf.fonttype": 42,
    "savefig.dpi": 144,
}


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
_DASHES = ((), (5.0, 1.8), (1.4, 1.4), (7.0, 1.6, 1.4, 1.6), (2.5, 1.2), (9.0, 2.0))
_OTHERS = [_look(color, *dash) for dash in _DASHES[1:] for color in (SKY_BLUE, ORANGE)]
SHADES, PALEST = 20, 0.35


def looks(runs: pd.DataFrame) -> dict[str, Look]:
    """A look for each line of arranged runs: a method keeps its colour in every figure.

    Where a method has several lines they go from pale to full in the order of their values.
    """
    lines = runs.drop_duplicates("label")
    others = [method for method in dict.fromkeys(lines["method"]) if method not in _METHODS]
    found = {}
    for line in lines.itertuples():
        look = _METHODS.get(line.method) or _OTHERS[others.index(line.method) % len(_OTHERS)]
        if line.dealt == SINGLE_CLIENT:
            look = _look(REFERENCE, width=1.1)
        if line.of > 1:
            dash = _DASHES[line.of - 1 - line.nth] if line.of <= len(_DASHES) else ()
            look = _look(shade(look["color"], line.nth / (line.of - 1)), *dash)
        found[line.label] = look
    return found


def shade(color: str, share: float) -> str:
    """A colour between pale (0) and full (1), in one of ``SHADES`` steps."""
    part = PALEST + (1.0 - PALEST) * round(share * SHADES) / SHADES
    red, green, blue = (1.0 - part * (1.0 - channel) for channel in to_rgb(color))
    return to_hex((red, green, blue))


def themes() -> dict[str, str]:
    """The CSS value, which differs in the dark, of each colour that a figure may have."""
    shades = {
        shade(color, step / SHADES): f"color-mix(in srgb, var(--{name}) "
        f"{100.0 * (PALEST + (1.0 - PALEST) * step / SHADES):.0f}%, var(--panel))"
        for color, name in _NAMES.items()
        for step in range(SHADES)
    }
    return shades | {color: f"var(--{name})" for color, name in _NAMES.items()}


def styled(draw: Callable[Concatenate[T, Axes, P], Axes]) -> Callable[..., Axes]:
    """Draw in our style, on a new Axes where none is given."""

    @functools.wraps(draw)
    def drawn(shown: T, ax: Axes | None = None, *args: P.args, **kwargs: P.kwargs) -> Axes:
        with mpl.rc_context(STYLE):
            if ax is None:
                import matplotlib.pyplot as plt

                _, ax = plt.subplots(figsize=(5.2, 2.8), layout="constrained")
            return draw(shown, ax, *args, **kwargs)

    return drawn


def panels(width: float, height: float, rows: int, columns: int, **how: Any) -> list[Axes]:
    """The Axes of a new figure in our style, in inches."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        return list(figure.subplots(rows, columns, squeeze=False, **how).flat)


def figure_of(ax: Axes) -> Figure:
    figure = ax.get_figure(root=True)
    assert figure is not None
    return figure


def save(ax: Axes, path: Path) -> None:
    """Write an Axes' figure in the format that the suffix names: same figure, same bytes."""
    kind = path.suffix.lower()[1:]
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    written = BytesIO()
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        # A glyph that no font here has: in an SVG the reader's may have it.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure_of(ax).savefig(written, format=kind, metadata=dates.get(kind))
    content = written.getvalue()
    if kind == "svg":  # hundredths of a point: the eye sees no more
        content = re.sub(rb"(\d\.\d\d)\d+", rb"\1", content)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def number_text(value: float, _position: int = 0) -> str:
    """A tick's label, with a proper minus and 10⁻⁵ instead of 1e-05."""
    mantissa, _, power = f"{value:.6g}".partition("e")
    if power:
        raised = str(int(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        mantissa = f"10{raised}" if mantissa == "1" else f"{mantissa}·10{raised}"
    return mantissa.replace("-", "−")


def log_axis(ax: Axes) -> None:
    """A logarithmic y axis with room around what is shown."""
    values = _shown(ax)
    values = values[values > 0.0]
    low, high = (float(values.min()), float(values.max())) if values.size else (0.1, 1.0)
    if high / low < 2.0:
        low, high = np.sqrt(low * high) / 1.6, np.sqrt(low * high) * 1.6
    margin = (high / low) ** 0.06
    ax.set_yscale("log", nonpositive="clip")
    ax.set_ylim(low / margin, high * margin)
    steps = (1.0, 2.0, 5.0) if high / low < 150.0 else (1.0,)
    ax.yaxis.set_major_locator(LogLocator(subs=steps, numticks=8))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(number_text))


def linear_axis(ax: Axes, highest: float = np.inf) -> None:
    """A linear y axis with room around what is shown, from 0 where that is near."""
    values = _shown(ax)
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    ax.set_ylim(0.0 if 0.0 <= low < 0.5 * high else low - margin, min(highest, high + margin))
    ax.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    ax.yaxis.set_major_formatter(FuncFormatter(number_text))


def accuracy_axis(ax: Axes) -> None:
    """Per cent by the logarithm of the error where the best passes 95, else linear.

    So 99.0 and 99.2 part. 100 has no logarithm and is drawn at the upper edge.
    """
    values = _shown(ax)
    if not values.size or values.max() <= 95.0:
        linear_axis(ax, highest=100.0)
        return
    errors = 100.0 - values[values < 100.0]
    least = float(errors.min()) * 0.75 if errors.size else 1.0
    most = min(100.0, float(errors.max()) * 1.1) if errors.size else 10.0

    def place(percent: Any) -> Values:
        return -np.log10(np.maximum(100.0 - np.asarray(percent, dtype=np.float64), least))

    def back(places: Any) -> Values:
        return 100.0 - 10.0 ** -np.asarray(places, dtype=np.float64)

    ax.set_yscale("function", functions=(place, back))
    ax.set_ylim(100.0 - most, 100.0 - least)
    taken: list[float] = []
    # The plainest first: a mark too near one that is taken already is left out.
    for mark in (90, 99, 99.9, 99.99, 50, 0, 95, 80, 99.5, 98, 99.95, 99.8, 99.98, 20):
        near = (abs(place(mark) - place(t)) < 0.08 * np.log10(most / least) for t in taken)
        if 100.0 - most <= mark <= 100.0 - least and not any(near):
            taken.append(mark)
    ax.set_yticks(sorted(taken), [number_text(mark) for mark in sorted(taken)])
    ax.yaxis.set_minor_locator(NullLocator())


def _shown(ax: Axes) -> Values:
    """Every y of the lines and the bands of an Axes and of those that share its y axis."""
    axes = ax.get_shared_y_axes().get_siblings(ax)
    lines = [np.asarray(line.get_ydata(), dtype=np.float64) for each in axes for line in each.lines]
    bands = [p.vertices[:, 1] for each in axes for c in each.collections for p in c.get_paths()]
    values = np.concatenate([*lines, *bands, np.empty(0)])
    return values[np.isfinite(values)]


def end_labels(ax: Axes, entries: Sequence[tuple[str, float, Look]]) -> None:
    """Name lines beside their ends; names that would touch are moved apart.

    Args:
        ax: with its final limits.
        entries: for each line its name, its last y and its look.
    """
    to_axes = ax.transData + ax.transAxes.inverted()
    left = ax.get_xlim()[0]
    ends = [float(np.clip(to_axes.transform((left, y))[1], 0.0, 1.0)) for _, y, _ in entries]
    height = ax.get_window_extent().height * 72.0 / figure_of(ax).dpi
    size = min(8.0, max(4.5, height / max(1, len(entries)) / 1.3))
    places = spread_out(ends, size * 1.3 / height)
    for (name, _, look), end, place in zip(entries, ends, places, strict=True):
        arrow = {"arrowstyle": "-", "relpos": (0.0, 0.5), "shrinkA": 1.0, "shrinkB": 3.0, **look}
        ax.annotate(
            name if len(name) <= 34 else name[:33] + "…",
            xy=(1.0, end),
            xycoords="axes fraction",
            xytext=(24.0, (place - end) * height),
            textcoords="offset points",
            va="center",
            fontsize=size,
            color=INK,
            annotation_clip=False,
            arrowprops=arrow,
        )


def spread_out(wanted: Sequence[float], step: float) -> list[float]:
    """Positions at least ``step`` apart and as near to those wanted as two sweeps get.

    They stay in [0, 1] unless there are too many for that.
    """
    order = np.argsort(wanted, kind="stable")
    placed = np.clip(np.asarray(wanted, dtype=np.float64)[order], 0.0, 1.0)
    slots = np.arange(len(placed)) * step
    placed = np.maximum.accumulate(placed - slots) + slots  # none too near to the one below
    room = np.minimum(placed, 1.0 - slots[::-1])  # none too near to the upper edge
    positions = np.empty(len(placed))
    positions[order] = room
    return list(map(float, positions))
