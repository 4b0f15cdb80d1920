"""Read the table of a search's trials, ``trials.csv``."""

import csv
import io
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fednnnn_plugin.report.printable import printable

STATES = ("finished", "pruned", "failed")
MAX_TRIALS_BYTES = 1 << 20

Point = tuple[float, ...]
Grid = Mapping[str, Point]


@dataclass(frozen=True)
class Trial:
    """One ended trial: its state, the metric (None unless it finished), and its rounds."""

    state: str
    value: float | None
    best_round: int | None
    rounds: int | None


def read_trials(
    path: Path, grids: Mapping[str, Grid], highest: float
) -> tuple[dict[str, dict[Point, Trial]], list[str]]:
    """Read the table of a search, whatever state it is in: a line that is wrong costs itself alone.

    Args:
        path: ``trials.csv``; where there is none, no trial has ended yet.
        grids: of each step, by its name.
        highest: what no value of the metric exceeds; none is below 0.

    Returns:
        The trials by step and point, and at most one line on what cannot be used.
    """
    found: dict[str, dict[Point, Trial]] = {step: {} for step in grids}
    if not path.exists():
        return found, []  # No trial has ended yet.
    refused: list[str] = []
    total = 0
    try:
        for row in _rows(path):
            total += 1
            problem = _place(row, grids, highest, found)
            if problem:
                refused.append(f"line {total + 1}: {problem}")
    except (csv.Error, OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        refused.append(f"after line {total + 1}: {reason}")
    if not refused:
        return found, []
    more = f" (and {len(refused) - 1} more lines)" if len(refused) > 1 else ""
    return found, [f"{printable(path)}: {printable(refused[0])}; left out{more}"]


def _rows(path: Path) -> Iterator[dict[str, str]]:
    if not path.is_file():
        raise ValueError("not a plain file")
    with path.open("rb") as file:
        raw = file.read(MAX_TRIALS_BYTES + 1)
    text = raw[:MAX_TRIALS_BYTES].decode("utf-8", "replace")
    if len(raw) > MAX_TRIALS_BYTES:
        text = text[: text.rfind("\n") + 1]
    for row in csv.DictReader(io.StringIO(text, newline="")):
        # Fields beyond the header's have no name, missing ones no value.
        yield {key: value or "" for key, value in row.items() if key and isinstance(key, str)}
    if len(raw) > MAX_TRIALS_BYTES:
        raise ValueError(f"more than {MAX_TRIALS_BYTES} bytes")


def _place(
    row: Mapping[str, str],
    grids: Mapping[str, Grid],
    highest: float,
    found: Mapping[str, dict[Point, Trial]],
) -> str:
    """Put a line's trial in its place; what is wrong with it, empty where nothing is."""
    step = row.get("step", "")
    if step not in grids:
        return "no step of the study"
    grid = grids[step]
    point = tuple(_number(row.get(key)) for key in grid)
    if any(value not in values for value, values in zip(point, grid.values(), strict=True)):
        return "not a point of the grid"
    if point in found[step]:
        return "a second line for its point"
    state, value = row.get("state", ""), _number(row.get("value"))
    if state not in STATES:
        return f"its state is none of {', '.join(STATES)}"
    finished = state == "finished"
    if finished and not 0.0 <= value <= highest:
        return "finished without a value that can be"
    found[step][point] = Trial(
        state,
        value if finished else None,
        _whole(row.get("best_round")),
        _whole(row.get("rounds")),
    )
    return ""


def _number(text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return math.nan


def _whole(text: str | None) -> int | None:
    number = _number(text)
    return int(number) if 0.0 <= number < 2**31 and number == int(number) else None
