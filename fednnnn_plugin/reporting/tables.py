"""The accuracy table with the paper's beside ours, and the rounds to a value."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from fednnnn_plugin.reporting import conditions
from fednnnn_plugin.reporting.conditions import LINE, SYMBOLS, differing, judged, value_text
from fednnnn_plugin.reporting.outcomes import (
    ACCURACY,
    SHARES,
    WORST_10,
    averaged,
    final_values,
    outcomes,
    reaching,
)
from fednnnn_plugin.reporting.paper import PAPER, unlike_paper
from fednnnn_plugin.reporting.runs import (
    IDENTITY,
    PARTITION,
    method_name,
    own_metrics,
    setting_columns,
)
from fednnnn_plugin.reporting.typeset import Table, fixed

# Worst results by client and by class, which a table has beside what judges its lines.
_PARTS = {"client_acc.worst_10": "worst 10 % of clients", "class_acc.worst": "worst class"}
_FIRST = ["data set", "condition", "method"]
_SHOWN = (
    *("client_num_in_total", "client_num_per_round", "learning_rate", "batch_size"),
    *("beta", "gamma", "prox_mu", "server_lr", "client_weighting"),
)


def accuracy(runs: pd.DataFrame) -> Table:
    """Best and final accuracy of each method in a condition, and the paper's beside them.

    Runs that have a metric of their own are judged by that: ``metric``. A cell is mean ± sample
    standard deviation (number of seeds), and the best of a condition's cells stands out. In the
    numbers accuracies are in [0, 1], further quantities those of the runs' last tests, ``rounds``
    and ``most_rounds`` those of the shortest and the longest run, ``stopped`` how many ended by
    their recipe's ``stop``, ``untested`` the most that a run has, ``paper`` in per cent, and
    ``unlike_paper`` how the settings differ.
    """
    every = outcomes(runs)
    heads = _of_lines(runs).to_dict("records")
    numbers = _beside_paper(averaged(every), heads)
    one_machine = runs.groupby(LINE[:2])["device"].nunique() < 2
    timed = one_machine.loc[pd.MultiIndex.from_frame(numbers[LINE[:2]])].to_numpy()
    numbers["seconds"] = numbers["seconds"].where(timed)
    rows = numbers[LINE].set_axis(_FIRST, axis=1)
    rows["method"] += numbers["unlike_paper"].map(lambda text: "*" * bool(text))
    rows["rounds"] = _rounds(numbers, heads)
    metrics = list(map(_with_unit, numbers["metric"], numbers["column"]))
    if (numbers["column"] != "test_acc").any():
        rows["metric"] = metrics
    for name in ("best", "final"):
        found = numbers[[name, f"{name}_sd", f"{name}_seeds"]]
        rows[name] = _mean_cells(found, numbers["column"])
    for column, heading in _further(runs, numbers):
        found = _last_values(runs, column, numbers)
        numbers[[f"{column}_{name}" for name in found]] = found.to_numpy()
        rows[heading] = _mean_cells(found, [column] * len(found))
    strong, notes = _best_cells(numbers)
    counted = ["mean ± sample standard deviation (number of seeds)", *_of_one_seed(runs)]
    notes = [*counted, *notes, *_missing(every)]
    if numbers["paper"].notna().any():
        rows["paper"] = fixed(numbers["paper"], 1)
        for name in ("best", "final"):
            rows[f"{name} − paper"] = fixed(numbers[name] * 100.0 - numbers["paper"], 1, "+")
        notes.append("paper: the accuracies in its table, of one run each; differences in points.")
    if numbers["seconds"].notna().any():
        rows["s a round"] = fixed(numbers["seconds"], 1)
        notes += _machines(runs, one_machine)
    if numbers["minutes"].notna().any():
        rows["min a run"] = fixed(numbers["minutes"], 1)
        notes.append("min a run: the mean over seeds, on whatever machines.")
    for difference, lines in numbers[numbers["unlike_paper"] != ""].groupby("unlike_paper"):
        who = ", ".join(lines["label"].unique())
        notes.append(f"* {who}: unlike the paper, whose values are in brackets: {difference}.")
    title = f"{judged(runs).capitalize()} {', '.join(dict.fromkeys(metrics))}"
    numbers = numbers.drop(columns="column")
    return Table(title, numbers, rows, frozenset(strong), tuple(notes))


def rounds_to(runs: pd.DataFrame, target: float, metric: str | None = None) -> Table:
    """The first round that is as good as ``target``: how many seeds got there, and the median.

    A seed that did not is later than all that did: there is a median where more than half did.
    The ``metric`` is what lines are judged by, unless it is given.
    """
    every = outcomes(runs, metric, target)
    numbers = reaching(every)
    rows = numbers[LINE].set_axis(_FIRST, axis=1)
    reached = numbers["reached"].astype(str) + "/" + numbers["seeds"].astype(str) + " seeds"
    rows["reached by"] = reached.where(numbers["tested"], "–")
    rows["median round"] = (
        numbers["median"].map("{:g}".format).where(numbers["median"].notna(), "–")
    )
    notes = ["The median is over all seeds; one that did not get there is later than all that did."]
    notes += _of_one_seed(runs)
    if (every["tests"] < every["rounds"]).any():
        notes.append("Not every round was tested: the first tested one.")
    what = f"{', '.join(every['metric'].unique())} {target:g}"
    if every["column"].isin(SHARES).all():
        what = f"an accuracy of {target * 100:g} %"
        what += " of the worst 10 % of clients" * (metric == WORST_10)
    return Table(f"Rounds to {what}", numbers.drop(columns="tested"), rows, notes=tuple(notes))


def settings(runs: pd.DataFrame) -> str:
    """The settings of a condition's lines: those of all, then what each line has of its own."""
    heads = _of_lines(runs).set_index("label")
    # Drawn by size, clients have weights of their own.
    if {"client_sampling", "client_weighting"} <= {*heads}:
        weighting = heads["client_weighting"].mask(heads["client_sampling"] == "by_size")
        heads = heads.assign(client_weighting=weighting)
    keys = [key for key in _SHOWN if key in heads and heads[key].notna().any()]
    own = differing(heads, keys)
    parts = [f"{SYMBOLS[key]} {value_text(heads[key].iloc[0])}" for key in keys if key not in own]
    for label, values in heads[own].astype(object).iterrows():
        texts = [f"{SYMBOLS[k]} {value_text(v)}" for k, v in values.dropna().items()]
        parts += [f"{label}: {', '.join(texts)}"] * bool(texts)
    return f"Settings: {'; '.join(parts)}." if parts else ""


def _of_lines(runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each line: the settings that its runs share, and the method, if they share all.

    Where a ``hue`` tells lines apart, runs of a line may differ.
    """
    heads = runs.drop_duplicates("run")
    told = {*IDENTITY, *PARTITION}  # by the run and by the condition
    keys = ["method", *(key for key in setting_columns(runs) if key not in told)]
    shared = heads.groupby(LINE)[keys].transform("nunique", dropna=False) == 1
    shared["method"] = shared.all(axis=1)
    return heads.assign(**heads[keys].where(shared)).drop_duplicates(LINE)


def _of_one_seed(runs: pd.DataFrame) -> list[str]:
    """A note on lines with several runs of a seed, which a ``hue`` has put together."""
    heads = runs.drop_duplicates("run").dropna(subset=["seed"])
    who = heads.loc[heads.duplicated([*LINE, "seed"]), "label"].unique()
    told = "several runs of one seed, each of which counts as a seed"
    return [f"{', '.join(who)}: {told}."] * bool(len(who))


def _with_unit(name: str, column: str) -> str:
    return f"{name} (%)" if column in SHARES else name


def _scale(column: str) -> tuple[float, int]:
    """The factor of a column's values in a table, and their digits."""
    return (100.0, 2) if column in SHARES else (1.0, 4)


def _mean_cells(found: pd.DataFrame, columns: Iterable[str]) -> list[str]:
    """Mean ± deviation (seeds) of each line, in the scale of its column."""
    cells = []
    for (mean, sd, seeds), column in zip(found.to_numpy(float), columns, strict=True):
        factor, digits = _scale(column)
        mean_text, sd_text = fixed(pd.Series([mean, sd]) * factor, digits)
        of = f" ({seeds:.0f})" * (mean_text != "–")
        cells.append(f"{mean_text}{f' ± {sd_text}' * (sd_text != '–')}{of}")
    return cells


def _beside_paper(numbers: pd.DataFrame, heads: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The numbers of lines with the ``paper``'s accuracy, and what is ``unlike_paper``."""
    places = [(head.get("dataset"), head["partition"], _method_of(head)) for head in heads]
    paper = pd.Series([PAPER.get(place, math.nan) for place in places])
    unlike = [
        unlike_paper(place, head, line.rounds, line.untested) if place in PAPER else ""
        for head, line, place in zip(heads, numbers.itertuples(), places, strict=True)
    ]
    of_accuracy = numbers["column"] == "test_acc"
    return numbers.assign(paper=paper.where(of_accuracy), unlike_paper=unlike)


def _method_of(head: Mapping[str, Any]) -> str | None:
    """A line's method, whatever its label is; None of several."""
    if pd.isna(head["method"]):
        return None
    return method_name(str(head.get("federated_optimizer")), head.get("client_method"))


def _rounds(numbers: pd.DataFrame, heads: Sequence[Mapping[str, Any]]) -> list[str]:
    """How many rounds the runs of each line have, of how many."""
    rounds = pd.Series([head.get("comm_round") for head in heads], dtype=object)
    planned = pd.to_numeric(rounds, errors="coerce")
    all_stopped = numbers["stopped"] == numbers["seeds"]
    columns = numbers["rounds"], numbers["most_rounds"], planned, all_stopped
    return [
        "stopped at " * stopped
        + f"{least}"
        + f" to {most}" * (most > least)
        + f" of {of:g}" * (least < of and not stopped)
        for least, most, of, stopped in zip(*columns, strict=True)
    ]


def _further(runs: pd.DataFrame, numbers: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """The columns of runs that judge none of the lines, or not all, and their headings."""
    for column, name in {"test_acc": ACCURACY, **own_metrics(runs), **_PARTS}.items():
        judges_all = (numbers["column"] == column).all()
        if column in runs and runs[column].notna().any() and not judges_all:
            yield column, f"final {_with_unit(name, column)}"


def _last_values(runs: pd.DataFrame, column: str, numbers: pd.DataFrame) -> pd.DataFrame:
    """Of each line the mean, deviation and number of its runs' last values."""
    last = runs.drop_duplicates("run").set_index("run").assign(last=final_values(runs, column))
    found = last.groupby(LINE)["last"].agg(["mean", "std", "count"])
    found = found.reindex(pd.MultiIndex.from_frame(numbers[LINE]))
    return found.fillna({"count": 0})


def _best_cells(numbers: pd.DataFrame) -> tuple[set[tuple[int, str]], list[str]]:
    """The best of the cells of each condition, as they are printed, and what to say of them."""
    strong, notes = set[tuple[int, str]](), list[str]()
    uneven = False
    for place, lines in numbers[numbers["best"].notna()].groupby(LINE[:2], sort=False):
        if len(lines) < 2 or place[0] == conditions.UNRECORDED:
            continue
        if why := _not_comparable(lines):
            notes.append(f"{' '.join(place)}: no best: {why}.")
            continue
        factor, digits = _scale(lines["column"].iloc[0])
        for name in ("best", "final"):
            printed = (lines[name] * factor).round(digits)
            first = printed.min() if lines["lower_is_better"].iloc[0] else printed.max()
            strong |= {(int(row), name) for row in lines.index[printed == first]}
        uneven |= lines["best_seeds"].nunique() > 1
    if any(numbers["seeds"][row] == 1 for row, _ in strong):
        notes.append("With one seed, small differences may be chance.")
    if uneven:
        notes.append("Where numbers of seeds differ, a difference may be that of the seeds.")
    return strong, ["Bold is the best of a condition."] * bool(strong) + notes


def _not_comparable(lines: pd.DataFrame) -> str:
    """Why a condition's lines are not ranked; empty where they are."""
    if lines["column"].nunique() > 1:
        return "the runs are judged by different metrics"
    for what, least in (("rounds", "rounds"), ("tests", "fewest_tests")):
        low, high = lines[least].min(), lines[f"most_{what}"].max()
        if low < high:
            return f"the runs have {low} to {high} {what}"
    return ""


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


def _machines(runs: pd.DataFrame, one_machine: pd.Series[bool]) -> Iterator[str]:
    """The machine of each condition whose seconds are shown."""
    places = runs.drop_duplicates(LINE[:2])[[*LINE[:2], "device"]]
    timed = places[places.set_index(LINE[:2]).index.map(one_machine)]
    yield "s a round: median; not shown for a condition with runs from several machines."
    for device, of in timed.groupby("device", sort=False):
        yield f"{device}: {'; '.join(of['data'] + ' ' + of['condition'])}."
