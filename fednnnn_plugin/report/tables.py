"""The paper's table beside ours, and the rounds to an accuracy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pandas as pd

from fednnnn_plugin.report.groups import CONDITIONS, LINE, UNRECORDED, judged, value_text
from fednnnn_plugin.report.runs import SECONDS

FEDAVG = "FedAvg"
_FIRST = ["data set", "condition", "method"]
# Table tab:accuracy of the paper, in per cent: MNIST and CIFAR-10 by condition. One run each.
_PAPER = """
FedAvg     99.0 81.3  98.2 72.6  99.1 83.5  93.5 56.6
FedProx    99.0 81.4  98.1 74.2  99.1 83.2  87.9 55.6
Norm-Norm  99.1 81.2  99.0 76.7  99.2 83.3  97.1 55.5
Momentum   99.1 83.1  99.2 74.3  99.1 84.2  96.9 62.0
FedNNNN    99.2 84.7  99.1 76.7  99.2 84.0  98.9 61.9
"""
# Table tab:params2: what each method was given, in the same order.
_GIVEN = """
FedProx    prox_mu  0.005 0.015  0.015 0.015  0.005 0.005  0.02 0.01
Norm-Norm  beta     1.1 0.6      1.0 0.6      1.0 0.7      0.9 0.7
Momentum   gamma    0.8 0.9      0.9 0.9      0.7 0.9      0.8 0.8
FedNNNN    beta     0.6 0.7      0.7 0.6      0.7 0.8      0.7 0.7
FedNNNN    gamma    0.7 0.8      0.8 0.7      0.7 0.8      0.8 0.6
"""
_PLACES = [(dataset, condition) for condition in CONDITIONS for dataset in ("mnist", "cifar10")]


def _by_place(table: str, names: int) -> dict[tuple[str, ...], float]:
    """The values of a table by data set, condition and the ``names`` that begin its lines."""
    lines = [line.split() for line in table.strip().splitlines()]
    return {
        (*place, *line[:names]): float(value)
        for line in lines
        for place, value in zip(_PLACES, line[names:], strict=True)
    }


PAPER, _OF_METHOD = _by_place(_PAPER, 1), _by_place(_GIVEN, 2)
# Table tab:params, and what it leaves to us.
_SETTINGS: dict[str, Any] = dict.fromkeys(("client_num_in_total", "client_num_per_round"), 100)
_SETTINGS |= {"batch_size": 50, "epochs": 5, "learning_rate": 0.05, "classes_per_client": 2}
_SETTINGS |= {"validation_fraction": 0, "client_weighting": "uniform", "precision": "fp32"}
_SETTINGS |= {"max_client_norm": None, "client_optimizer": "sgd"}
_SETTINGS |= {"power_law_exponent": 1, "min_samples": 10}
_ONLY_OF = {"classes_per_client": "non-IID", "power_law_exponent": "UB", "min_samples": "UB"}
SETTINGS = {
    "mnist": _SETTINGS | {"model": "nnnn_mnist", "comm_round": 100, "weight_decay": 0},
    "cifar10": _SETTINGS | {"model": "nnnn_cifar10", "comm_round": 250, "weight_decay": 5e-4},
}
_MARKDOWN = str.maketrans({"&": "&amp;", **{char: f"\\{char}" for char in "\\|*_`[]<>#"}})


@dataclass(frozen=True)
class Table:
    """Numbers, and the same as texts below data set, condition and method.

    ``strong`` are (row, column) of the cells that stand out, ``notes`` lines to print below.
    """

    title: str
    numbers: pd.DataFrame
    rows: pd.DataFrame
    strong: frozenset[tuple[int, str]] = frozenset()
    notes: tuple[str, ...] = ()

    def starts(self) -> list[bool]:
        """For each row whether it begins a condition."""
        return list(~self.rows.iloc[:, :2].duplicated())

    def text(self) -> str:
        """For a terminal: a condition is named once."""
        shown = self.rows.copy()
        shown.loc[[not starts for starts in self.starts()], shown.columns[:2]] = ""
        for column in shown.columns[:3]:
            width = max(shown[column].str.len().max(), len(column))
            shown[column] = shown[column].str.ljust(width)
            shown = shown.rename(columns={column: column.ljust(width)})
        return "\n".join([f"{self.title}\n", shown.to_string(index=False), "", *self.notes]) + "\n"

    def markdown(self) -> str:
        rows = self.rows.map(escaped)
        for row, column in self.strong:
            rows.loc[row, column] = f"**{rows.loc[row, column]}**"
        rule = ["---"] * 3 + ["---:"] * (len(rows.columns) - 3)
        lines = [list(rows), rule, *rows.to_numpy().tolist()]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return "\n\n".join([f"**{self.title}**", table, *map(escaped, self.notes)]) + "\n"


def escaped(text: str) -> str:
    """Text that Markdown shows as it is."""
    return text.translate(_MARKDOWN)


def outcomes(runs: pd.DataFrame) -> pd.DataFrame:
    """A line a run, arranged: what identifies it, its ``best`` and ``final`` accuracy, ...

    Accuracies are in [0, 1], NaN where none was measured, ``tests`` how many were; ``seconds`` are
    the median of a round.
    """
    heads = runs.drop_duplicates("run").set_index("run", drop=False)
    tested = runs.groupby("run")["test_acc"]
    heads = heads.assign(best=tested.max(), final=tested.last(), tests=tested.count())
    seconds = runs[SECONDS].sum(axis=1).groupby(runs["run"]).median()
    seconds = seconds[seconds > 0.0]  # a loop of one's own does not measure them
    return heads.assign(seconds=seconds, rounds=runs.groupby("run")["round"].max())


def accuracy(runs: pd.DataFrame) -> Table:
    """Best and final accuracy of each method in a condition, and the paper's beside them.

    In the numbers accuracies are in [0, 1], with the sample standard deviation over seeds (NaN of
    one run), ``rounds`` and ``most_rounds`` those of the shortest and the longest run, ``untested``
    the most that a run has, ``paper`` in per cent, and ``unlike_paper`` how the settings differ.
    """
    every = outcomes(runs)
    every["untested"] = every["rounds"] - every["tests"]
    for _, members in every.groupby(LINE[:2]):
        every.loc[members.index, "ranked"] = _not_ranked(members) == ""
    numbers = every.groupby(LINE, sort=False).agg(
        method=("method", "first"), seeds=("run", "size"),
        rounds=("rounds", "min"), most_rounds=("rounds", "max"), untested=("untested", "max"),
        best=("best", "mean"), best_sd=("best", "std"),
        final=("final", "mean"), final_sd=("final", "std"), seconds=("seconds", "mean"),
        ranked=("ranked", "first"),
    ).reset_index()  # fmt: skip
    ranked = numbers.pop("ranked")
    heads = runs.drop_duplicates(LINE).to_dict("records")
    planned = pd.Series([head.get("comm_round") for head in heads], dtype=object)
    places = [(head.get("dataset"), head["deal"], head["method"]) for head in heads]
    numbers["paper"] = [PAPER.get(place, math.nan) for place in places]
    numbers["unlike_paper"] = [
        _unlike_paper(head, place, line.rounds, line.untested) if place in PAPER else ""
        for head, line, place in zip(heads, numbers.itertuples(), places, strict=True)
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
    strong = set()
    for name in ("best", "final"):
        rows[name] = _means(numbers[name] * 100.0, numbers[f"{name}_sd"] * 100.0, 2)
        highest = numbers[name] == numbers.groupby(LINE[:2])[name].transform("max")
        strong |= {(int(row), name) for row in numbers.index[ranked & highest]}
    notes = ["± is the sample standard deviation over seeds."] * bool((numbers["seeds"] > 1).any())
    if numbers["paper"].notna().any():
        rows["paper"] = _fixed(numbers["paper"], 1)
        for name in ("best", "final"):
            rows[f"{name} − paper"] = _fixed(numbers[name] * 100.0 - numbers["paper"], 1, "+")
        notes.append("paper: its table of accuracies, one run each; differences in points.")
    rows["s a round"] = _fixed(numbers["seconds"], 1)
    if devices := ", ".join(map(str, runs["device"].dropna().unique())):
        notes.append(f"s a round: median, on {devices}.")
    unlike = numbers[numbers["unlike_paper"] != ""].groupby("unlike_paper", sort=False)["label"]
    for difference, labels in unlike:
        who = ", ".join(labels.unique())
        notes.append(f"* {who}: not the paper's settings, in brackets: {difference}.")
    title = f"{judged(runs).capitalize()} accuracy (%)"
    return Table(title, numbers, rows, frozenset(strong), tuple(notes))


def headline(runs: pd.DataFrame) -> str:
    """The best method of a condition and its lead over FedAvg, or why there is none."""
    every = outcomes(runs)
    if (why := _not_ranked(every)) is None:
        return ""
    if why:
        return f"Not ranked: {why}."
    methods = every.groupby(["label", "method"])["best"].agg(["mean", "std"]) * 100.0
    best = methods.nlargest(1, "mean")
    (text,), (label, _) = _means(best["mean"], best["std"], 2), best.index[0]
    fedavg = methods["mean"][methods.index.isin([FEDAVG], level="method")].max()  # NaN of none
    lead = best["mean"].iloc[0] - fedavg
    above = f", {lead:.1f} points above FedAvg" * bool(lead > 0.0)
    return f"Best: {label}, {text} %{above}."


def _not_ranked(every: pd.DataFrame) -> str | None:
    """Why a condition's methods are not ranked, by their ``outcomes``; empty where they are.

    None where there is nothing to rank: one method, or data that nobody recorded.
    """
    measured = every.dropna(subset=["best"])
    if measured["label"].nunique() < 2 or measured["data"].iloc[0] == UNRECORDED:
        return None
    for name in ("rounds", "tests"):
        low, high = measured[name].min(), measured[name].max()
        if low < high:
            return f"the runs have {low} to {high} {name}"
    seeds = measured["seed"].map(str).groupby(measured["label"]).agg(lambda of: tuple(sorted(of)))
    return "the methods have different seeds" if seeds.nunique() > 1 else ""


def rounds_to(runs: pd.DataFrame, target: float) -> Table:
    """Rounds that each method needs to an accuracy.

    A seed that did not get there counts with the rounds that it had: with fewer ``reached`` than
    ``seeds``, ``rounds`` is a lower bound. It is NaN where no accuracy was measured.
    """
    every = outcomes(runs)
    every["reached"] = runs[runs["test_acc"] >= target].groupby("run")["round"].min()
    every["needed"] = every["reached"].fillna(every["rounds"]).where(every["tests"] > 0)
    numbers = every.groupby(LINE, sort=False).agg(
        seeds=("run", "size"), reached=("reached", "count"),
        rounds=("needed", "mean"), sd=("needed", "std"),
    ).reset_index()  # fmt: skip
    rows = numbers[LINE].set_axis(_FIRST, axis=1)
    bound = (numbers["reached"] < numbers["seeds"]) & numbers["rounds"].notna()
    rows["rounds"] = bound.map({True: ">", False: ""}) + _means(
        numbers["rounds"], numbers["sd"], int(numbers["seeds"].max() > 1)
    )
    seldom = bool((every["tests"] < every["rounds"]).any())
    notes = ("Not every round was tested: the first that was.",) * seldom
    title = f"Rounds to an accuracy of {target * 100:g} %"
    return Table(title, numbers, rows, notes=notes)


def _fixed(values: pd.Series[float], digits: int, sign: str = "") -> pd.Series[str]:
    texts = values.map(lambda value: f"{value:{sign}.{digits}f}".replace("-", "−"))
    return texts.where(values.notna(), "–")


def _means(means: pd.Series[float], sds: pd.Series[float], digits: int) -> pd.Series[str]:
    texts = _fixed(means, digits)
    return texts.where(sds.isna(), texts + " ± " + _fixed(sds, digits))


def _unlike_paper(
    head: dict[str, Any], place: tuple[str, str, str], rounds: int, untested: int
) -> str:
    """The settings that are not the paper's, whose values stand in brackets."""
    own = {key: value for (*of, key), value in _OF_METHOD.items() if tuple(of) == place}
    wanted, said = SETTINGS[head["dataset"]] | own, []
    for key, paper in wanted.items():
        ours = None if pd.isna(head.get(key, paper)) else head.get(key, paper)
        if ours != paper and _ONLY_OF.get(key, "") in head["deal"]:
            said.append(f"{key} {value_text(ours)} ({value_text(paper)})")
    if rounds < wanted["comm_round"] and head.get("comm_round") == wanted["comm_round"]:
        said.append(f"{rounds} rounds so far ({wanted['comm_round']})")
    if untested:
        said.append(f"{untested} rounds not tested (0)")
    return ", ".join(said)
