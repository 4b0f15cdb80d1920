"""The list of runs: one line each, as the page sorts them."""

from collections.abc import Sequence

import numpy as np

from fednnnn_plugin.report.groups import condition_of
from fednnnn_plugin.report.runs import Run
from fednnnn_plugin.report.tables import Cell

# Heading, and whether the column holds numbers.
COLUMNS: Sequence[tuple[str, bool]] = (
    ("run", False),
    ("data set", False),
    ("condition", False),
    ("method", False),
    ("seed", True),
    ("rounds", True),
    ("best (%)", True),
    ("in round", True),
    ("final (%)", True),
    ("N/E, last", True),
    ("rejected", True),
    ("seconds", True),
    ("state", False),
)


def run_cells(run: Run) -> list[Cell]:
    """A run's cells in the order of ``COLUMNS``; the values behind them sort the table."""
    condition = condition_of(run)
    best, final = run.best(), run.final()
    planned = run.planned_rounds
    short = planned is not None and run.last_round < planned
    wall = run.summary.get("wall_seconds")
    wall = wall if isinstance(wall, int | float) and not isinstance(wall, bool) else None
    rejected = run.column("rejected")
    refused = None if np.isnan(rejected).all() else int(np.nansum(rejected))
    return [
        _text(run.name),
        _text(condition.dataset_name),
        _text(condition.name),
        _text(run.method),
        Cell("–" if run.seed is None else str(run.seed), run.seed),
        Cell(f"{run.last_round} of {planned}" if short else str(run.last_round), run.last_round),
        _percent(best),
        Cell("–") if best is None else Cell(str(best[1]), best[1]),
        _percent(final),
        _agreement(run),
        Cell("–" if refused is None else str(refused), refused),
        Cell("–") if wall is None else Cell(f"{wall:,.0f}".replace(",", " "), wall),
        _text(_state(run)),
    ]


def _text(text: str) -> Cell:
    return Cell(text, text)


def _percent(found: tuple[float, int] | None) -> Cell:
    return Cell("–") if found is None else Cell(f"{found[0] * 100:.2f}", found[0])


def _agreement(run: Run) -> Cell:
    upper, lower = run.column("mean_update_norm"), run.column("mean_client_norm")
    known = np.flatnonzero(~np.isnan(upper) & (lower > 0.0))
    if not known.size:
        return Cell("–")
    value = float(upper[known[-1]] / lower[known[-1]])
    return Cell(f"{value:.3f}", value)


def _state(run: Run) -> str:
    state = "finished" if run.finished else "unfinished"
    if run.records.degenerate:
        state += f", {run.records.degenerate} degenerate rounds"
    return state
