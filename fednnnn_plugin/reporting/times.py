"""Whether the times of runs can be compared, and on which machines they were taken."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from fednnnn_plugin.reporting.conditions import LINE
from fednnnn_plugin.reporting.runs import SECONDS, WAITED

BUSY = 0.2  # a run that waited so much of its time for a core ran beside other work


def comparable_times(runs: pd.DataFrame) -> bool:
    """Whether a condition's runs are all of one machine, and none waited for what else ran on it.

    ``BUSY`` is the share of a run's time that counts as waiting; older records do not have it.
    """
    every = runs.assign(seconds=runs[SECONDS].sum(axis=1)).groupby("run")[["seconds", WAITED]].sum()
    return runs["device"].nunique() < 2 and not (every[WAITED] > BUSY * every["seconds"]).any()


def times_note(runs: pd.DataFrame) -> str:
    """What keeps the times of runs from being compared, as far as it is not on record."""
    if runs[WAITED].notna().all():
        return ""
    return "Times can be compared only if nothing else ran on the machine, which is not recorded."


def machines(runs: pd.DataFrame) -> Iterator[str]:
    """Name the machines, and what ran on which: whole conditions, or lines of a divided one."""
    of_each = runs.dropna(subset=["device"]).groupby("device", sort=False)
    if runs["device"].nunique() < 2:
        yield from (f"Machine: {device}." for device, _ in of_each)
        return
    divided = runs.groupby(LINE[:2])["device"].transform("nunique") > 1
    for device, of in of_each:
        place = of["data"] + " " + of["condition"]
        who = place.where(~divided[of.index], place + " " + of["label"]).unique()
        yield f"Machine {device}: {'; '.join(who)}."
