"""Rounds that each method needs to reach an accuracy, and the speed-up over FedAvg."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fednnnn_plugin.report.accuracy import FEDAVG, statistic
from fednnnn_plugin.report.groups import Group, conditions
from fednnnn_plugin.report.tables import Cell, Table, csv_text


@dataclass(frozen=True)
class RoundsRow:
    """Rounds that one method needs to reach an accuracy.

    Args:
        group: the runs.
        reached: the first tested round at or above the target, of each run that has one.
        tried: the fewest rounds that a run has which never got there; None if all did.
        speed_up: FedAvg's mean rounds over this method's; a lower bound where ``at_least``.
        at_least: FedAvg never got there in the rounds that it ran.
    """

    group: Group
    reached: tuple[int, ...]
    tried: int | None
    speed_up: float | None
    at_least: bool


def rounds_rows(groups: Sequence[Group], target: float) -> list[RoundsRow]:
    """Rounds to reach ``target`` (in [0, 1]) for each group, with the speed-up over FedAvg.

    FedAvg is the one of the same condition; of several settings the fastest. There is a speed-up
    only where all seeds of both got there, or all of the method's and none of FedAvg's.
    """
    rows = []
    for members in conditions(groups).values():
        found = {id(group): _reach(group, target) for group in members}
        baselines = [found[id(group)] for group in members if group.method == FEDAVG]
        for group in members:
            reached, tried = found[id(group)]
            speed_up, at_least = _speed_up(reached, tried, baselines)
            rows.append(RoundsRow(group, reached, tried, speed_up, at_least))
    return rows


def rounds_table(rows: Sequence[RoundsRow], target: float) -> Table:
    """Rounds to an accuracy, and how many times faster than FedAvg."""
    lines = []
    for row in rows:
        where = row.group.condition
        mean = statistic([float(r) for r in row.reached])
        if mean is None:
            rounds = Cell(f">{row.tried}")
        else:
            text = mean.text(1) if len(row.reached) > 1 else str(row.reached[0])
            partly = f" ({len(row.reached)} of {len(row.group.runs)} seeds)"
            rounds = Cell(text + (partly if row.tried is not None else ""), mean.mean)
        sign = ">" if row.at_least else ""
        speed = "–" if row.speed_up is None else f"{sign}{row.speed_up:.1f}×"
        lines.append(
            (
                Cell(where.dataset_name),
                Cell(where.name),
                Cell(row.group.label),
                rounds,
                Cell(speed, row.speed_up),
            )
        )
    return Table(
        title=f"Rounds to a test accuracy of {target * 100:g} %",
        columns=("data set", "condition", "method", "rounds", "speed-up over FedAvg"),
        rows=tuple(lines),
        numeric=frozenset({3, 4}),
        groups=2,
    )


def rounds_csv(rows: Sequence[RoundsRow], target: float) -> str:
    """The numbers of the table of rounds to an accuracy."""
    header = ["dataset", "condition", "method", "target", "seeds", "seeds_reached"]
    header += ["rounds_mean", "rounds_sd", "speed_up_over_fedavg", "speed_up_is_lower_bound"]
    lines = []
    for row in rows:
        where = row.group.condition
        mean = statistic([float(r) for r in row.reached])
        stats = [None, None] if mean is None else [mean.mean, mean.deviation]
        line = [where.dataset, where.name, row.group.label, target, len(row.group.runs)]
        lines.append([*line, len(row.reached), *stats, row.speed_up, row.at_least])
    return csv_text(header, lines)


def _reach(group: Group, target: float) -> tuple[tuple[int, ...], int | None]:
    reached, short = [], []
    for run in group.runs:
        hits = np.flatnonzero(run.column("test_acc") >= target)
        if hits.size:
            reached.append(int(run.records.rounds[hits[0]]))
        else:
            short.append(run.last_round)
    return tuple(reached), min(short, default=None)


def _speed_up(
    reached: tuple[int, ...],
    tried: int | None,
    baselines: Sequence[tuple[tuple[int, ...], int | None]],
) -> tuple[float | None, bool]:
    if tried is not None or not baselines:
        return None, False
    mean = sum(reached) / len(reached)
    complete = [sum(rounds) / len(rounds) for rounds, short in baselines if short is None]
    if complete:
        return min(complete) / mean, False
    nowhere = [short for rounds, short in baselines if not rounds and short is not None]
    if len(nowhere) == len(baselines) and min(nowhere) >= mean:
        return min(nowhere) / mean, True
    return None, False
