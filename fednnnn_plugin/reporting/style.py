"""How the figures look: a style for matplotlib, a look for each method, and labels of lines.

Colours are of Okabe and Ito's palette, told apart by colour-blind readers; the dashes tell the
methods apart in a black-and-white print.
"""

import re
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from io import BytesIO
from pathlib import Path
from typing import Any, ParamSpec, cast

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import get_font_names
from matplotlib.patches import Polygon
from matplotlib.text import Text
from matplotlib.transforms import Affine2D, Affine2DBase, ScaledTranslation

from fednnnn_plugin.errors import UserError, printable, shown
from fednnnn_plugin.reporting.conditions import SINGLE_CLIENT
from fednnnn_plugin.reporting.runs import method_name

P = ParamSpec("P")
Look = dict[str, Any]  # as Axes.plot takes it
Palette = Mapping[str, str]
# Labels of lines that get no name: matplotlib's own, and ours.
UNNAMED = re.compile(r"_child\d+|_orthogonal|_name")

PAPER, REFERENCE = "#ffffff", "#6f7883"
BLACK, ORANGE, SKY_BLUE, GREEN = "#101418", "#e69f00", "#56b4e9", "#009e73"
BLUE, VERMILION, PURPLE = "#0072b2", "#d55e00", "#cc79a7"

# After matplotlib's own font, whatever of these the machine has, for names in other scripts.
_SCRIPTS = re.compile(
    "(Noto Sans|Source Han Sans) (CJK )?(SC|JP)|WenQuanYi|SimHei|Microsoft YaHei|"
    "PingFang|Hiragino|Noto Sans (Devanagari|Arabic|Thai)|Unifont$"
)
# The user's rc, which a file of the working directory may be, has no say: ``text.usetex`` would run
# LaTeX with a preamble of whoever wrote it.
_SESSION = ("backend", "date", "docstring", "interactive", "tk", "timezone", "toolbar", "webagg")
STYLE: Any = {
    **{k: v for k, v in mpl.rcParamsDefault.items() if k.partition(".")[0] not in _SESSION},
    **mpl.rc_params_from_file(
        Path(__file__).with_name("fednnnn.mplstyle"), use_default_template=False
    ),
    "font.family": ["DejaVu Sans", *sorted(filter(_SCRIPTS.match, get_font_names())), "sans-serif"],
}
NAME_SIZE, KEY, MOST_TICKS = 8.0, (4.0, 22.0), 20  # in points; of one axis
PANELS = "panels"  # the label of figures that are drawn in our style only
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
    if not isinstance(palette, Mapping | None):
        raise UserError("palette", shown(palette), "must map names of methods to colours")
    lines = runs.drop_duplicates("label")
    rules = lines.get("federated_optimizer", lines["method"])
    of_clients = lines.get("client_method", [None] * len(lines))
    pairs = zip(rules.fillna(lines["method"]), of_clients, strict=True)
    methods = [method_name(str(rule), client) for rule, client in pairs]
    others = [method for method in dict.fromkeys(methods) if method not in _METHODS]
    found = {}
    named = lines[["label", "method", "partition", "shade"]]
    for line, method in zip(named.itertuples(), methods, strict=True):
        look = _METHODS.get(method) or _OTHERS[others.index(method) % len(_OTHERS)]
        if line.partition == SINGLE_CLIENT:
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
            if figure_of(ax).get_label() != PANELS:
                _settle(ax)
            interactive = mpl.is_interactive()
        mpl.interactive(interactive)
        return ax

    return drawing


def _settle(ax: Axes) -> None:
    """Make what matplotlib would make when it draws, in whatever style holds then."""
    for axis in (ax.xaxis, ax.yaxis):
        axis.get_major_ticks(MOST_TICKS)
    for text in cast(Iterable[Text], ax.findobj(Text)):
        text.set_usetex(False)


def axes(ax: object) -> Axes:
    """The Axes that is given, or a new one."""
    if ax is None:
        import matplotlib.pyplot as plt

        _, ax = plt.subplots(figsize=(5.2, 2.8), layout="constrained")
    if not isinstance(ax, Axes):
        raise UserError(
            "ax", f"is of {printable(type(ax))}", "must be one Axes, such as axes[0, 0] of several"
        )
    return ax


def panels(width: float, height: float, rows: int, columns: int, **how: Any) -> list[Axes]:
    """The Axes of a new figure in our style, in inches.

    Its margins are fixed; matplotlib's layout engines take longer than the drawing.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width, height), label=PANELS)
        figure.subplots_adjust(
            left=0.62 / width,
            right=1.0 - 0.1 / width,
            bottom=0.42 / height,
            top=1.0 - 0.26 / height,
            wspace=0.25 * columns / (width - 0.72),
            hspace=0.35,
        )
        found = list(figure.subplots(rows, columns, squeeze=False, **how).flat)
        for ax in found:  # at fixed places, too: to look for them takes a fifth of the drawing
            below = ax.transAxes + ScaledTranslation(0.0, -0.22, figure.dpi_scale_trans)
            beside = ax.transAxes + ScaledTranslation(-0.48, 0.0, figure.dpi_scale_trans)
            ax.xaxis.set_label_coords(0.5, 0.0, transform=below)
            ax.yaxis.set_label_coords(0.0, 0.5, transform=beside)
        return found


def leave_room(axes: Sequence[Axes], names: Iterable[str]) -> None:
    """Leave room for names beside the last of a figure's panels."""
    figure = figure_of(axes[0])
    widest = max((_width(shortened(name)) for name in names), default=0.0)
    room = (KEY[1] + 8.0 + widest * NAME_SIZE) / 72.0
    figure.subplots_adjust(right=1.0 - room / figure.get_figwidth())


def _width(name: str) -> float:
    """About how wide a name is, in ems."""
    return sum(1.05 if unicodedata.east_asian_width(c) in "WF" else 0.66 for c in name)


def shortened(name: str) -> str:
    return name if len(name) <= 34 else name[:33] + "…"


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


def end_labels(ax: Axes, looks: Mapping[str, Look]) -> None:
    """Name the lines beside their ends, with a key; names that would touch are moved apart.

    Names that an earlier call wrote are written anew.
    """
    for old in (*ax.texts, *ax.patches):
        if old.get_label() == "_name":
            old.remove()
    named = [line for line in ax.lines if not UNNAMED.fullmatch(str(line.get_label()))]
    lines = {str(line.get_label()): line for line in named}
    figure = figure_of(ax)
    if figure.get_layout_engine() is None and figure.canvas.manager is not None:
        figure.set_layout_engine("constrained")  # a user's figure has no room for the names
    to_axes, right = ax.transData + ax.transAxes.inverted(), ax.get_xlim()[1]
    ends = [float(np.asarray(line.get_ydata())[-1]) for line in lines.values()]
    wanted = [float(np.clip(to_axes.transform((right, y))[1], 0.0, 1.0)) for y in ends]
    height = ax.get_window_extent().height * 72.0 / figure.dpi
    size = min(NAME_SIZE, max(4.5, height / max(1, len(lines)) / 1.3))
    points = Affine2D().scale(1.0 / 72.0) + figure.dpi_scale_trans
    ink = ax.xaxis.label.get_color()  # of a dark style, too
    how: Any = {"fontsize": size, "color": ink, "va": "center_baseline", "label": "_name"}
    for (name, line), y in zip(lines.items(), spread_out(wanted, size * 1.3 / height), strict=True):
        beside = points + ScaledTranslation(1.0, y, cast(Affine2DBase, ax.transAxes))
        ax.text(KEY[1] + 4.0, 0.0, shortened(name), transform=beside, **how)
        key = Polygon([(KEY[0], 0.0), (KEY[1], 0.0)], closed=False, fill=False, label="_name")
        key.set(edgecolor=line.get_color(), alpha=line.get_alpha(), lw=line.get_linewidth())
        key.set_linestyle(looks.get(name, {}).get("linestyle", line.get_linestyle()))
        key.set(transform=beside, clip_on=False)
        ax.add_artist(key)


def spread_out(wanted: Sequence[float], step: float) -> list[float]:
    """Positions at least ``step`` apart, near to those wanted, below 1 if there is room."""
    order = np.argsort(wanted, kind="stable")
    slots = np.arange(len(order)) * step
    placed = np.maximum.accumulate(np.asarray(wanted, dtype=np.float64)[order] - slots) + slots
    positions = np.empty(len(order))
    positions[order] = np.minimum(placed, 1.0 - slots[::-1])  # none too near to the upper edge
    return list(map(float, positions))
