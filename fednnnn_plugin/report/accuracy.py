"""The paper's table from run folders: accuracy of each method in each condition."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fednnnn_plugin.report import paper
from fednnnn_plugin.report.groups import Condition, Group
from fednnnn_plugin.report.runs import Run
from fednnnn_plugin.report.tables import Cell, Table, csv_text

FEDAVG = "FedAvg"


@dataclass(frozen=True)
class Statistic:
    """Mean over runs and sample standard deviation (divisor n - 1; None for one run)."""

    mean: float
    deviation: float | None

    def text(self, digits: int, scale: float = 1.0) -> str:
        mean = f"{self.mean * scale:.{digits}f}"
        if self.deviation is None:
            return mean
        return f"{mean} ± {self.deviation * scale:.{digits}f}"


def statistic(values: Sequence[float]) -> Statistic | None:
    """Mean and sample standard deviation of at least one value; None of none."""
    if not values:
        return None
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Statistic(float(np.mean(values)), deviation)


@dataclass(frozen=True)
class AccuracyRow:
    """One method in one condition; accuracies in [0, 1], the paper's figure in per cent.

    Args:
        group: the runs.
        rounds: the fewest rounds that a run has.
        best: over the runs, of each run's best tested round.
        final: over the runs, of each run's last tested round.
        paper: the paper's figure, in per cent; None where it has none.
        unlike_paper: how the runs differ from the paper's settings; empty where they do not.
    """

    group: Group
    rounds: int
    best: Statistic | None
    final: Statistic | None
    paper: float | None
    unlike_paper: str

    def against_paper(self, accuracy: Statistic | None) -> float | None:
        """An accuracy less the paper's, in percentage points."""
        if accuracy is None or self.paper is None:
            return None
        return accuracy.mean * 100.0 - self.paper


def accuracy_rows(groups: Sequence[Group]) -> list[AccuracyRow]:
    """The numbers of the accuracy table, one row a group."""
    rows = []
    for group in groups:
        where = group.condition
        figure = paper.ACCURACY.get((where.dataset, where.clients, where.sizes, group.method))
        best = [found[0] for run in group.runs if (found := run.best())]
        final = [found[0] for run in group.runs if (found := run.final())]
        rounds = min(run.last_round for run in group.runs)
        rows.append(
            AccuracyRow(
                group=group,
                rounds=rounds,
                best=statistic(best),
                final=statistic(final),
                paper=figure,
                unlike_paper="" if figure is None else _unlike_paper(group.runs[0], where, rounds),
            )
        )
    return rows


def accuracy_table(rows: Sequence[AccuracyRow]) -> Table:
    """Methods by condition and data set: best and final accuracy, and the paper's beside them."""
    with_paper = any(row.paper is not None for row in rows)
    columns = ["data set", "condition", "method", "seeds", "rounds", "best", "final"]
    if with_paper:
        columns += ["paper", "best − paper", "final − paper"]
    winners = _winners(rows)
    lines = []
    for row in rows:
        condition = row.group.condition
        cells = [
            Cell(condition.dataset_name),
            Cell(condition.name),
            Cell(row.group.label + ("*" if row.unlike_paper else "")),
            Cell(str(len(row.group.runs)), len(row.group.runs)),
            Cell(_rounds_text(row), row.rounds),
            _accuracy_cell(row.best, ("best", id(row)) in winners),
            _accuracy_cell(row.final, ("final", id(row)) in winners),
        ]
        if with_paper:
            cells.append(Cell("–" if row.paper is None else f"{row.paper:.1f}", row.paper))
            cells += [_signed(row.against_paper(value)) for value in (row.best, row.final)]
        lines.append(tuple(cells))
    return Table(
        title="Accuracy of the evaluation model on the test set (%)",
        columns=tuple(columns),
        rows=tuple(lines),
        numeric=frozenset(range(3, len(columns))),
        groups=2,
        notes=_notes(rows),
    )


def accuracy_csv(rows: Sequence[AccuracyRow]) -> str:
    """The accuracy table's numbers to the last bit, accuracies in [0, 1]."""
    header = ["dataset", "condition", "method", "seeds", "rounds"]
    header += ["best_mean", "best_sd", "final_mean", "final_sd"]
    header += ["paper_percent", "best_minus_paper_points", "final_minus_paper_points"]
    lines = []
    for row in rows:
        where = row.group.condition
        line = [where.dataset, where.name, row.group.label, len(row.group.runs), row.rounds]
        for value in (row.best, row.final):
            line += [None, None] if value is None else [value.mean, value.deviation]
        differences = [row.against_paper(value) for value in (row.best, row.final)]
        lines.append([*line, row.paper, *differences])
    return csv_text(header, lines)


def _winners(rows: Sequence[AccuracyRow]) -> set[tuple[str, int]]:
    """The best of each condition, where it has more than one row."""
    winners: set[tuple[str, int]] = set()
    by_condition: dict[Condition, list[AccuracyRow]] = {}
    for row in rows:
        by_condition.setdefault(row.group.condition, []).append(row)
    for members in by_condition.values():
        for name in ("best", "final"):
            means = {id(r): s.mean for r in members if (s := getattr(r, name)) is not None}
            if len(means) > 1:
                top = max(means.values())
                winners |= {(name, key) for key, mean in means.items() if mean == top}
    return winners


def _rounds_text(row: AccuracyRow) -> str:
    planned = {run.planned_rounds for run in row.group.runs}
    most = max((rounds for rounds in planned if rounds is not None), default=None)
    return f"{row.rounds} of {most}" if most and row.rounds < most else str(row.rounds)


def _accuracy_cell(value: Statistic | None, strong: bool) -> Cell:
    if value is None:
        return Cell("–")
    return Cell(value.text(2, 100.0), value.mean, strong)


def _signed(points: float | None) -> Cell:
    if points is None:
        return Cell("–")
    return Cell(f"{points:+.1f}".replace("-", "−").replace("−0.0", "+0.0"), points)


def _unlike_paper(run: Run, condition: Condition, rounds: int) -> str:
    differences = []
    wanted = dict(paper.SETTINGS[condition.dataset])
    if condition.clients == "non-IID":
        wanted["classes_per_client"] = paper.CLASSES_PER_CLIENT
    for key, value in wanted.items():
        ours = run.number(key)
        if ours is not None and not math.isclose(ours, value, rel_tol=1e-9):
            differences.append(f"{key} {ours:g} ({value:g})")
    planned = wanted["comm_round"]
    if rounds < planned and run.number("comm_round") == planned:
        differences.append(f"{rounds} rounds so far ({planned:g})")
    return ", ".join(differences)


def _notes(rows: Sequence[AccuracyRow]) -> tuple[str, ...]:
    notes = []
    if any(len(row.group.runs) > 1 for row in rows):
        notes.append("± is the sample standard deviation over seeds.")
    if any(row.paper is not None for row in rows):
        notes.append("paper: table tab:accuracy, one run each; differences in percentage points.")
    for difference in dict.fromkeys(row.unlike_paper for row in rows if row.unlike_paper):
        notes.append(f"* not the paper's settings, whose values are in brackets: {difference}.")
    return tuple(notes)
