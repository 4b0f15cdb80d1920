"""What a figure draws of its runs: means over seeds with bands, and the recorded numbers."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from fednnnn_plugin.report import style
from fednnnn_plugin.report.groups import SINGLE_CLIENT, Group
from fednnnn_plugin.report.panel import Panel, Series
from fednnnn_plugin.report.runs import Run
from fednnnn_plugin.report.style import LineStyle

Values = npt.NDArray[np.float64]
Looks = Sequence[tuple[Group, LineStyle]]

SINGLE_LOOK = LineStyle(style.MUTED, style.SOLID, 1.0)


def column(run: Run, name: str, module: str | None = None) -> Values:
    """float64 [T]: a norm by round, of the whole model or of a module; NaN where not recorded."""
    if module is None:
        return run.column(name)
    norms = run.records.layers.get(module)
    return np.full(run.records.rounds.size, np.nan) if norms is None else norms[name]


def combined(looks: Looks, name: str, module: str | None = None) -> tuple[Series, ...]:
    """A quantity of ``metrics.jsonl``, of the whole model or of a module."""
    return _series(looks, lambda run: column(run, name, module))


def percent(looks: Looks, name: str) -> tuple[Series, ...]:
    """An accuracy in per cent."""
    return _series(looks, lambda run: run.column(name) * 100.0)


def ratio(looks: Looks) -> tuple[Series, ...]:
    """N/E; missing in a round in which no client moved (E = 0)."""
    return _series(looks, _agreement)


def _agreement(run: Run) -> Values:
    upper, lower = run.column("mean_update_norm"), run.column("mean_client_norm")
    return np.divide(upper, lower, out=np.full(lower.size, np.nan), where=lower > 0.0)


def _series(looks: Looks, values_of: Callable[[Run], Values]) -> tuple[Series, ...]:
    """One series a group: the mean over its runs; with several, a band of one standard deviation.

    Rounds of which no run recorded the quantity are left out, so that a curve joins tested rounds.
    """
    found = []
    for group, look in looks:
        rounds = np.unique(np.concatenate([run.records.rounds for run in group.runs]))
        values = np.full((len(group.runs), rounds.size), np.nan)
        for row, run in enumerate(group.runs):
            values[row, np.searchsorted(rounds, run.records.rounds)] = values_of(run)
        count = (~np.isnan(values)).sum(axis=0)
        rounds, values, count = rounds[count > 0], values[:, count > 0], count[count > 0]
        if not rounds.size:
            continue
        mean = np.nansum(values, axis=0) / count
        low = high = None
        if len(group.runs) > 1:
            squares = np.nansum((values - mean) ** 2, axis=0)
            deviation = np.sqrt(squares / np.maximum(count - 1, 1))
            low, high = mean - deviation, mean + deviation
        label = SINGLE_CLIENT if look is SINGLE_LOOK else group.label
        found.append(Series(label, look, rounds.astype(np.float64), mean, low, high))
    return tuple(found)


def means(*panels: Panel) -> Values:
    """Every value of some panels' lines, and the upper ends of their bands.

    For logarithmic axes: where a deviation is as large as its mean, the lower end nears 0, and an
    axis made for it would have decades of nothing. The band then leaves the plot at the bottom.
    """
    series = [s for panel in panels for s in panel.series]
    parts = [s.y for s in series] + [s.high for s in series if s.high is not None]
    return np.concatenate(parts) if parts else np.empty(0)


def shown_values(*panels: Panel) -> Values:
    """Every value that some panels show, bands included."""
    parts = [s.y for panel in panels for s in panel.series]
    bands = [b for panel in panels for s in panel.series for b in (s.low, s.high)]
    parts += [band for band in bands if band is not None]
    return np.concatenate(parts) if parts else np.empty(0)


def numbers(
    looks: Looks, names: Sequence[str], module: str | None = None
) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """The recorded values behind a figure, as ``metrics.jsonl`` has them; None where none is.

    Returns:
        Column names, and one row for each run and round in which something was recorded.
    """
    header = ("run", "method", "seed", "round", *(("module",) if module else ()), *names)
    rows: list[tuple[object, ...]] = []
    for group, _ in looks:
        for run in group.runs:
            table = np.column_stack([column(run, name, module) for name in names])
            known = ~np.isnan(table).all(axis=1)
            start = (run.name, group.label, run.seed)
            for index, values in zip(run.records.rounds[known], table[known], strict=True):
                recorded = [None if np.isnan(value) else float(value) for value in values]
                rows.append((*start, int(index), *((module,) if module else ()), *recorded))
    return header, rows
