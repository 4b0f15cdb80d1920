"""The paper's table beside ours, and the rounds to an accuracy."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pandas as pd

from fednnnn_plugin.reporting.conditions import LINE, SYMBOLS, differing, judged, value_text
from fednnnn_plugin.reporting.judging import ACCURACY, scale, with_unit
from fednnnn_plugin.reporting.outcomes import averaged, outcomes, reaching
from fednnnn_plugin.reporting.paper import PAPER, unlike_paper
from fednnnn_plugin.reporting.ranking import best_cells
from fednnnn_plugin.reporting.runs import OWN_SPLIT
from fednnnn_plugin.reporting.times import comparable_times, machines, times_note
from fednnnn_plugin.reporting.typeset import Table, fixed, means

_FIRST = ["data set", "condition", "method"]
_SHOWN: tuple[str, ...] = (
    "client_num_in_total",
    "client_num_per_round",
    "learning_rate",
    "batch_size",
)
_SHOWN += ("beta", "gamma", "prox_mu", "server_lr")


def accuracy(runs: pd.DataFrame) -> Table:
    """Best and final accuracy of each method in a condition, and the paper's beside them.

    Runs that have a metric of their own are judged by that: ``metric``.
    In the numbers accuracies are in [0, 1], with the sample standard deviation over seeds (NaN of
    one run), ``rounds`` and ``most_rounds`` those of the shortest and the longest run, ``untested``
    the most that a run has, ``paper`` in per cent, and ``unlike_paper`` how the settings differ.
    """
    every = outcomes(runs)
    numbers = averaged(every)
    lower = numbers.pop("lower").fillna(False).astype(bool)
    of_accuracy = numbers["metric"] == ACCURACY
    heads = runs.drop_duplicates(LINE).to_dict("records")
    planned = pd.Series([head.get("comm_round") for head in heads], dtype=object)
    of_paper = [(head.get("dataset"), head["deal"], head["method"]) for head in heads]
    numbers["paper"] = [PAPER.get(place, math.nan) for place in of_paper]
    numbers["paper"] = numbers["paper"].where(of_accuracy)
    numbers["unlike_paper"] = [
        unlike_paper(head, line.rounds, line.untested) if place in PAPER else ""
        for head, line, place in zip(heads, numbers.itertuples(), of_paper, strict=True)
    ]
    rows = numbers[LINE].set_axis(_FIRST, axis=1)
    rows["method"] += numbers["unlike_paper"].map(lambda text: "*" * bool(text))
    rows["seeds"] = numbers["seeds"].astype(str)
    counts = numbers["rounds"].map("{:g}".format)
    several = numbers["most_rounds"] > numbers["rounds"]
    counts = counts.where(~several, counts + " to " + numbers["most_rounds"].map("{:g}".format))
    planned = pd.to_numeric(planned, errors="coerce")
    unfinished = numbers["rounds"] < planned
    rows["rounds"] = counts.where(~unfinished, counts + " of " + planned.map("{:g}".format))
    if not of_accuracy.all():
        rows["metric"] = numbers["metric"].map(with_unit)
    for name in ("best", "final"):
        rows[name] = _values(numbers, name)
    strong, notes = best_cells(numbers, every, lower)
    notes += _missing(every)
    notes += ["± is the sample standard deviation over seeds."] * bool((numbers["seeds"] > 1).any())
    if numbers["paper"].notna().any():
        rows["paper"] = fixed(numbers["paper"], 1)
        for name in ("best", "final"):
            rows[f"{name} − paper"] = fixed(numbers[name] * 100.0 - numbers["paper"], 1, "+")
        notes.append("paper: the accuracies in its table, of one run each; differences in points.")
    alike = [name for name, part in runs.groupby(LINE[:2]) if comparable_times(part)]
    timed = pd.MultiIndex.from_frame(numbers[LINE[:2]]).isin(alike)
    numbers["seconds"] = numbers["seconds"].where(timed)
    if numbers["seconds"].notna().any():
        rows["s a round"] = fixed(numbers["seconds"], 1)
        notes.append(f"s a round: median. {times_note(runs)}".strip())
    if not timed.all():
        notes.append(
            "No times are shown for a condition with runs from different machines or beside other "
            "work."
        )
    notes += machines(runs)
    unlike = numbers[numbers["unlike_paper"] != ""].groupby("unlike_paper", sort=False)["label"]
    for difference, labels in unlike:
        who = ", ".join(labels.unique())
        notes.append(f"* {who}: not the paper's settings, in brackets: {difference}.")
    title = f"{judged(runs).capitalize()} {', '.join(numbers['metric'].map(with_unit).unique())}"
    return Table(title, numbers, rows, frozenset(strong), tuple(notes))


def _values(numbers: pd.DataFrame, name: str) -> pd.Series[str]:
    """The texts of a column of values, each in the scale of its metric."""
    parts = []
    for metric, of in numbers.groupby("metric"):
        factor, digits = scale(str(metric))
        parts.append(means(of[name] * factor, of[f"{name}_sd"] * factor, digits))
    return pd.concat(parts).sort_index()


def _missing(every: pd.DataFrame) -> Iterator[str]:
    """Name the lines whose means are over fewer seeds than they have."""
    for line, seeds in every.groupby(LINE, sort=False):
        who, metric = f"{' '.join(map(str, line))}:", seeds["metric"].iloc[0]
        measured = seeds["tests"] > 0
        ended = measured & seeds["final"].isna()
        for without, where in ((~measured, ""), (ended, " in the last round")):
            if measured.any() and without.any():
                count = f"{without.sum()} of {len(seeds)} seeds"
                has = "has" if without.sum() == 1 else "have"
                yield f"{who} {count} {has} no {metric}{where}."
        if measured.any() and seeds["lower_is_better"].isna().all():
            yield f"{who} no best {metric} before a run is finished: smaller may be better."


def settings(runs: pd.DataFrame) -> str:
    """The settings of a condition's lines: those of all, then what each line has of its own."""
    heads = runs.drop_duplicates("label").set_index("label")
    keys = [key for key in _SHOWN if key in heads and heads[key].notna().any()]
    own = differing(heads, keys)
    parts = [f"{SYMBOLS[key]} {value_text(heads[key].iloc[0])}" for key in keys if key not in own]
    for label, values in heads[own].astype(object).iterrows():
        told = [f"{SYMBOLS[k]} {value_text(v)}" for k, v in values.dropna().items()]
        parts += [f"{label}: {', '.join(told)}"] * bool(told)
    sentences = [f"Settings: {'; '.join(parts)}."] if parts else []
    if heads["partition_method"].eq(OWN_SPLIT).any() and "client_weighting" in heads:
        named = " or ".join(sorted(heads["client_weighting"].dropna().unique()))
        sentences += [f"Weights of the clients (client_weighting): {named}."] * bool(named)
    return " ".join(sentences)


def rounds_to(runs: pd.DataFrame, target: float) -> Table:
    """Rounds that each method needs to an accuracy, or to a value of the runs' metric.

    Where a seed did not get there, its rounds are not known: ``reached`` says how many did, and
    there is neither a mean nor a deviation.
    """
    every = outcomes(runs)
    numbers = reaching(runs, every, target)
    rows = numbers[LINE].set_axis(_FIRST, axis=1)
    rows["seeds"] = numbers["seeds"].astype(str)
    rows["reached it"] = numbers["reached"].astype(str).where(numbers["tested"], "–")
    rows["rounds"] = means(numbers["rounds"], numbers["sd"], int(numbers["seeds"].max() > 1))
    rows["rounds"] = rows["rounds"].where(
        numbers["rounds"].notna() | ~numbers["tested"],
        ">" + numbers["shortest"].astype(str),
    )
    numbers = numbers.drop(columns="tested")
    seldom = bool((every["tests"] < every["rounds"]).any())
    notes = ("Not every round was tested: the first tested one.",) * seldom
    metrics = every["metric"].unique()
    of_accuracy = [*metrics] == [ACCURACY]
    what = (
        f"an accuracy of {target * 100:g} %" if of_accuracy else f"{', '.join(metrics)} {target:g}"
    )
    title = f"Rounds to {what}"
    return Table(title, numbers, rows, notes=notes)
