"""The figures of one condition: the paper's accuracy curves and its norm analysis (NWDA)."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fednnnn_plugin.report.canvas import Canvas
from fednnnn_plugin.report.curves import (
    SINGLE_LOOK,
    Looks,
    combined,
    means,
    numbers,
    percent,
    ratio,
    shown_values,
)
from fednnnn_plugin.report.groups import SINGLE_CLIENT, Condition, Group
from fednnnn_plugin.report.layers import shown_layers, why_shown
from fednnnn_plugin.report.panel import Panel, Series, draw_panels, ends_text
from fednnnn_plugin.report.scales import (
    Nines,
    accuracy_scale,
    linear_scale,
    log_scale,
    percent_scale,
)
from fednnnn_plugin.report.style import line_styles

NORMS = ("mean_update_norm", "mean_client_norm", "server_update_norm")
SPREAD = ("client_norm_min", "client_norm_median", "client_norm_max")
NORM_LABEL = "L2 norm"
ACCURACY_LABEL = "test accuracy (%)"


@dataclass(frozen=True, eq=False)
class Chart:
    """A figure: what is drawn, what is said about it, and the numbers that it rests on.

    Args:
        name: file name without suffix.
        title: heading.
        caption: how to read it.
        alt: what a reader hears who does not see it.
        canvas: the drawing.
        header, rows: the recorded numbers, one line a run and round.
    """

    name: str
    title: str
    caption: str
    alt: str
    canvas: Canvas
    header: tuple[str, ...]
    rows: list[tuple[object, ...]]


def charts(
    condition: Condition,
    groups: Sequence[Group],
    references: Sequence[Group],
    layers: Sequence[str],
) -> Iterator[Chart]:
    """The figures of a condition, without those of which no run recorded anything.

    Args:
        condition: the condition.
        groups: its methods.
        references: single-client runs on the same data, where there are some.
        layers: modules to show; where empty, the last fully connected and convolutional ones.
    """
    looks = line_styles([(group.method, group.variant) for group in groups])
    lines = list(zip(groups, looks, strict=True))
    if condition.clients == SINGLE_CLIENT:  # N = E and there is no spread
        found = [_accuracy(lines), _integrated(lines, []), _norms(lines, [], None)]
        found += [_norms(lines, [], module) for module in layers]
    else:
        reference = [(group, SINGLE_LOOK) for group in references]
        modules = tuple(layers) or shown_layers([run for group in groups for run in group.runs])
        found = [_accuracy(lines), _ratio(lines), _norms(lines, reference, None)]
        found += [_norms(lines, [], module) for module in modules]
        found += [_client_spread(lines), _integrated(lines, reference), _served(lines)]
    yield from (chart for chart in found if chart is not None)


def _accuracy(lines: Looks) -> Chart | None:
    panel = Panel("", percent(lines, "test_acc"))
    if not panel.series:
        return None
    scale = accuracy_scale(shown_values(panel))
    by_error = " The axis goes by the logarithm of the error." if isinstance(scale, Nines) else ""
    return Chart(
        "accuracy",
        "Test accuracy",
        f"The evaluation model: the plain average of the clients' models.{by_error}"
        + _band_note(lines),
        _alt("test accuracy in per cent", [panel]),
        draw_panels([panel], ACCURACY_LABEL, scale),
        *numbers(lines, ("test_acc",)),
    )


def _norms(lines: Looks, references: Looks, module: str | None) -> Chart | None:
    titles = ("N, mean update", "E, mean client update", "server move")
    shown = [*references, *lines]
    panels = [
        Panel(title, combined(shown, name, module))
        for title, name in zip(titles, NORMS, strict=True)
    ]
    if not any(panel.series for panel in panels):
        return None
    where = "whole model" if module is None else module
    if module is None:
        caption = (
            "N is the norm of the clients' mean update, E the mean norm of their updates; N far "
            "below E says that averaging cancels them out. The server move is how far the served "
            "model went, which the paper's appendix plots as N."
        )
    else:
        reason = why_shown(lines[0][0].condition.dataset, module)
        caption = f"The same for the weight and bias of {module} alone. {reason}".strip()
    return Chart(
        "norms" if module is None else f"norms-{module}",
        f"N, E and server move: {where}",
        caption + _band_note(lines),
        _alt(f"L2 norms of the {where} on a logarithmic axis", panels),
        draw_panels(panels, NORM_LABEL, log_scale(means(*panels))),
        *numbers(shown, NORMS, module),
    )


def _integrated(lines: Looks, references: Looks) -> Chart | None:
    shown = [*references, *lines]
    panel = Panel("", combined(shown, "integrated_norm"))
    if not panel.series:
        return None
    return Chart(
        "integrated-norm",
        "Integrated norm",
        "The way that the served model has gone so far: the sum of its moves."
        + (" Grey: one client that holds all data." if references else "")
        + _band_note(lines),
        _alt("integrated norm", [panel]),
        draw_panels([panel], "sum of moves (L2)", linear_scale(shown_values(panel), floor=0.0)),
        *numbers(shown, ("integrated_norm",)),
    )


def _ratio(lines: Looks) -> Chart | None:
    cohorts = {int(m) for group, _ in lines if (m := group.runs[0].number("client_num_per_round"))}
    marks = [(1.0, "1: clients agree")]
    for m in sorted(m for m in cohorts if m > 1):
        marks.append((1.0 / math.sqrt(m), f"1/√{m}: orthogonal"))
    series = ratio(lines)
    panel = Panel("", series, tuple(marks))
    if not series:
        return None
    header, rows = numbers(lines, NORMS[:2])
    rows = [(*row, _ratio_of(row)) for row in rows]
    return Chart(
        "agreement",
        "Do the clients agree? N/E",
        "1: all clients move alike; 1/√m: their updates are orthogonal, as if unrelated; below: "
        "they undo each other." + _band_note(lines),
        _alt("ratio N/E on a logarithmic axis", [panel]),
        draw_panels([panel], "N/E", log_scale(means(panel), [value for value, _ in marks])),
        (*header, "ratio"),
        rows,
    )


def _client_spread(lines: Looks) -> Chart | None:
    panels = []
    for group, look in lines:
        low, median, high = (combined([(group, look)], name) for name in SPREAD)
        if low and median and high:
            band = Series("", look, median[0].x, median[0].y, low[0].y, high[0].y)
            panels.append(Panel(group.label, (band,)))
    if not panels:
        return None
    return Chart(
        "client-norms",
        "Spread of the clients' updates",
        "Median of the clients' update norms; the band reaches from the smallest to the largest.",
        _alt("median norm of a client's update on a logarithmic axis", panels),
        draw_panels(panels, "client update (L2)", log_scale(shown_values(*panels)), key=False),
        *numbers(lines, SPREAD),
    )


def _served(lines: Looks) -> Chart | None:
    served = percent(lines, "served_test_acc")
    if not served:
        return None
    panels = [
        Panel("evaluation model", percent(lines, "test_acc")),
        Panel("served model", served),
    ]
    return Chart(
        "served",
        "Evaluation model and served model",
        "The served model only starts the next round; the paper calls its own accuracy extremely "
        "poor." + _band_note(lines),
        _alt("test accuracy in per cent", panels),
        draw_panels(panels, ACCURACY_LABEL, percent_scale(shown_values(*panels))),
        *numbers(lines, ("test_acc", "served_test_acc")),
    )


def _ratio_of(row: tuple[object, ...]) -> float | None:
    upper, lower = row[-2:]
    if isinstance(upper, float) and isinstance(lower, float) and lower > 0.0:
        return upper / lower
    return None


def _band_note(lines: Looks) -> str:
    if any(len(group.runs) > 1 for group, _ in lines):
        return " Mean over seeds, with a band of one standard deviation."
    return ""


def _alt(quantity: str, panels: Sequence[Panel]) -> str:
    parts = [
        f"{panel.title}: {ends}" if panel.title else ends
        for panel in panels
        if (ends := ends_text(panel))
    ]
    return f"Line chart of {quantity} by round. Last values. " + "; ".join(parts) + "."
