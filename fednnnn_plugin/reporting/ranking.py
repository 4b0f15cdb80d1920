"""Which method of a condition is the best, or why that cannot be said."""

from __future__ import annotations

import pandas as pd

from fednnnn_plugin.reporting.conditions import LINE, UNRECORDED
from fednnnn_plugin.reporting.judging import ACCURACY, scale
from fednnnn_plugin.reporting.outcomes import averaged, outcomes
from fednnnn_plugin.reporting.paper import PAPER, SETTINGS
from fednnnn_plugin.reporting.typeset import means

FEDAVG = "FedAvg"


def headline(runs: pd.DataFrame) -> str:
    """The best method of a condition and its lead over FedAvg, or why there is none."""
    every = outcomes(runs)
    compared = _compared(every)
    if (why := _not_ranked(compared)) is None:
        return ""
    if why:
        return f"Not ranked: {why}."
    metric = str(compared["metric"].iloc[0])
    factor, digits = scale(metric)
    methods = compared.groupby(["label", "method"])["best"].agg(["mean", "std"]) * factor
    sign = -1.0 if compared["lower_is_better"].iloc[0] else 1.0
    best = methods.loc[[(methods["mean"] * sign).idxmax()]]
    (text,), (label, _) = means(best["mean"], best["std"], digits), best.index[0]
    fedavg = (methods["mean"][methods.index.isin([FEDAVG], level="method")] * sign).max()
    lead = best["mean"].iloc[0] * sign - fedavg  # NaN without it
    of_accuracy = metric == ACCURACY
    by = f"{lead:.1f} points" if of_accuracy else f"{lead:.3g}"
    above = f", {by} {'below' if sign < 0 else 'above'} FedAvg" * bool(lead > 0.0)
    said = f"{text} %" if of_accuracy else f"{metric} {text}"
    shared = " that all methods have" * bool(len(compared) < every["best"].count())
    return f"Best: {label}, {said}{above}; {_extent(compared)}{shared}."


def best_cells(
    numbers: pd.DataFrame, every: pd.DataFrame, lower: pd.Series[bool]
) -> tuple[set[tuple[int, str]], list[str]]:
    """The cells of the best method of each condition that is ranked, and what to say of them."""
    compared = {place: _compared(members) for place, members in every.groupby(LINE[:2])}
    why = {place: _not_ranked(members) for place, members in compared.items()}
    ranked = pd.Series([why[place] == "" for place in numbers.set_index(LINE[:2]).index])
    shared = numbers[LINE].merge(averaged(pd.concat(compared.values())), on=LINE, how="left")
    strong = set()
    for name in ("best", "final"):
        signed = shared[name].where(~lower, -shared[name])
        first = signed == signed.groupby([numbers[key] for key in LINE[:2]]).transform("max")
        strong |= {(int(row), name) for row in numbers.index[ranked & first]}
    alone = any(shared["seeds"][row] == 1 for row, _ in strong)
    fewer = bool((shared["seeds"] < numbers["seeds"])[ranked].any())
    note = f"Bold is the {'best' if lower.any() else 'highest'}"
    note += " of the seeds that all methods of a condition have" * fewer + "."
    note += " With one seed, small differences may be chance." * alone
    return strong, [note] * (alone or fewer)


def _extent(every: pd.DataFrame) -> str:
    """How many rounds and seeds a condition's result stands on, as in ``30 of the paper's …``."""
    rounds, head = int(every["rounds"].max()), every.iloc[0]
    paper = SETTINGS.get(str(head.get("dataset")), {}).get("comm_round", 0)
    listed = any(place[:2] == (head.get("dataset"), head["deal"]) for place in PAPER)
    of_paper = f" of the paper's {paper}" * bool(listed and rounds < paper)
    seeds = int(every.groupby("label")["run"].size().min())
    return f"{rounds}{of_paper} rounds, " + ("one seed" if seeds == 1 else f"{seeds} seeds")


def _compared(every: pd.DataFrame) -> pd.DataFrame:
    """Of a condition's ``outcomes`` those by which its methods are ranked: of the seeds they share.

    All that were measured where they share none.
    """
    measured = every.dropna(subset=["best"])
    seeds = measured["seed"].map(str)
    of_methods = [set(of) for _, of in seeds.groupby(measured["label"])]
    shared = seeds.isin(set.intersection(*of_methods) if of_methods else ())
    return measured[shared] if shared.any() else measured


def _not_ranked(compared: pd.DataFrame) -> str | None:
    """Why a condition's methods are not ranked by these outcomes; empty where they are.

    None where there is nothing to rank: one method, or data that nobody recorded.
    """
    if compared["label"].nunique() < 2 or compared["data"].iloc[0] == UNRECORDED:
        return None
    if compared["metric"].nunique() > 1:
        return "the runs are judged by different metrics"
    for name in ("rounds", "tests"):
        low, high = compared[name].min(), compared[name].max()
        if low < high:
            return f"the runs have {low} to {high} {name}"
    seeds = compared["seed"].map(str).groupby(compared["label"]).agg(lambda of: tuple(sorted(of)))
    return "the methods have different seeds" if seeds.nunique() > 1 else ""
