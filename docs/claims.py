"""The tables of ``results/CLAIMS.md``: ``python docs/claims.py`` writes them from the records."""

import math
import re
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

import fednnnn_plugin as fp
from fednnnn_plugin.data.class_counts import client_counts
from fednnnn_plugin.data.partition import partition
from fednnnn_plugin.data.titles import TITLES
from fednnnn_plugin.reporting.conditions import METHODS, arrange
from fednnnn_plugin.reporting.paper import PAPER
from fednnnn_plugin.reporting.runs import SECONDS

RESULTS = Path(__file__).parents[1] / "results"
PAGE = RESULTS / "CLAIMS.md"
PLACE = ["data", "condition"]
LINE = [*PLACE, "method"]
RUN = [*LINE, "run"]
# MNIST's training images of each class, which are all that a partition by classes depends on.
_MNIST = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)


def best(runs: pd.DataFrame) -> pd.DataFrame:
    """The best accuracy, and how many points FedNNNN is above FedAvg and FedProx of its seed."""
    accuracies = _best(runs)
    paper = pd.Series(PAPER).unstack().rename(TITLES, level=0)
    table = _means(accuracies, "{:.1f}")
    for other in ("FedAvg", "FedProx"):
        table[f"FedNNNN − {other}"] = _means(accuracies["FedNNNN"] - accuracies[other], "{:+.1f}")
        lead = paper["FedNNNN"] - paper[other]
        table[f"paper: − {other}"] = lead.map("{:+.1f}".format).str.replace("-", "−")
    return table


def speed(runs: pd.DataFrame) -> pd.DataFrame:
    """The first round as accurate as FedAvg of the same seed in the end: a median over seeds."""
    ends = runs[runs["method"] == "FedAvg"].groupby([*PLACE, "seed"])["test_acc"].last()
    goals = runs.merge(ends.rename("goal").reset_index(), on=[*PLACE, "seed"])
    reached = goals.assign(reached=goals["round"].where(goals["test_acc"] >= goals["goal"]))
    of_seed = reached.groupby([*LINE, "seed"])["reached"].min().fillna(math.inf)
    rounds = of_seed.unstack("method")[[*METHODS]].groupby(PLACE).agg(_median)
    rounds.insert(0, "FedAvg ends with", _means(100 * ends, "{:.1f}"))
    return rounds


def agreement(runs: pd.DataFrame) -> pd.DataFrame:
    """N/E in the first and in the last five rounds, and how much of N and of E is left then."""
    norms = runs[["mean_update_norm", "mean_client_norm"]].set_axis(["N", "E"], axis=1)
    norms = runs[RUN].join(norms.assign(ratio=norms["N"] / norms["E"]))
    late = runs["round"] > runs.groupby("run")["round"].transform("max") - 5
    first, last = (
        norms[part].groupby(RUN, sort=False).mean() for part in (runs["round"] <= 5, late)
    )
    table = {"N/E, rounds 1 to 5": first["ratio"], "N/E, last five": last["ratio"]}
    table |= {f"{name}, last five / first": last[name] / first[name] for name in ("N", "E")}
    return _means(pd.DataFrame(table), "{:.2f}", LINE)


def moves(runs: pd.DataFrame) -> pd.DataFrame:
    """How far the server goes a round, and the clients; β/(1 - γ) of methods that scale by E/N."""
    steady = runs[runs["round"] > 5]
    fedavg = steady[steady["method"] == "FedAvg"].set_index([*PLACE, "seed", "round"])
    norms = ["mean_update_norm", "mean_client_norm"]
    theirs = fedavg[norms].add_suffix("_fedavg")
    steady = steady.join(theirs, on=[*PLACE, "seed", "round"])
    gamma = steady.get("gamma", pd.Series(0.0, steady.index)).fillna(0.0)
    ours, move = steady["mean_client_norm"], steady["server_update_norm"]
    table = {
        "server step / E": move / ours,
        "server step / FedAvg's": move / steady["mean_update_norm_fedavg"],
        "E / FedAvg's E": ours / steady["mean_client_norm_fedavg"],
    }
    shown = _means(steady[RUN].assign(**table).groupby(RUN, sort=False).mean(), "{:.2f}", LINE)
    ratio = (steady["beta"] / (1.0 - gamma)).groupby([steady[key] for key in LINE]).first()
    shown.insert(0, "β/(1 - γ)", ratio.map("{:.2f}".format, na_action="ignore"))
    return shown[shown["E / FedAvg's E"] != "–"]


def normalised(runs: pd.DataFrame) -> pd.DataFrame:
    """What normalisation adds to the best accuracy, alone and beside momentum, in points."""
    accuracies = _best(runs)
    gains = {
        "Norm-Norm − FedAvg": accuracies["Norm-Norm"] - accuracies["FedAvg"],
        "FedNNNN − Momentum": accuracies["FedNNNN"] - accuracies["Momentum"],
    }
    return _means(pd.DataFrame(gains).dropna(how="all"), "{:+.1f}")


def served(runs: pd.DataFrame) -> pd.DataFrame:
    """Both models' accuracy in the last round, and how much worse the served one was, in points."""
    tested = runs.dropna(subset=["served_test_acc"])
    tested = tested.assign(loss=100.0 * (tested["test_acc"] - tested["served_test_acc"]))
    groups = tested.groupby(RUN, sort=False)
    last = 100 * groups[["test_acc", "served_test_acc"]].last()
    last.columns = pd.Index(["average", "served"])
    table = _means(last.assign(loss=groups["loss"].mean()), "{:.1f}", LINE)
    table = table.rename(columns={"loss": "worse by, mean of all rounds"})
    table["at most"] = tested.groupby(LINE)["loss"].max().map("{:.1f}".format)
    return table


def overhead(runs: pd.DataFrame) -> pd.DataFrame:
    """What the server's arithmetic takes of a round, by its median, where one machine ran all."""
    runs = runs[runs.groupby(PLACE)["device"].transform("nunique") < 2]
    seconds = runs["seconds.aggregate"]
    parts = {"aggregation (ms)": 1000 * seconds}
    parts["of a round (%)"] = 100 * seconds / runs[SECONDS].sum(axis=1)
    medians = runs[RUN].assign(**parts).groupby(RUN, sort=False).median()
    return _means(medians, "{:.1f}", LINE)


def rarest() -> pd.DataFrame:
    """How much of non-IID-UB's average is of the two rarest classes, in per cent, by exponent."""
    labels = np.repeat(np.arange(10), _MNIST)
    shares: dict[float, list[float]] = {}
    for exponent, seed in product((0.5, 0.8, 0.9, 1.0, 1.05, 1.059), range(20)):
        sizes = {"sizes": "power_law", "power_law_exponent": exponent}
        parts = partition(labels, 100, "n_class", **sizes, seed=seed)
        counts = client_counts(labels, parts)
        of_class = counts.div(counts.sum(axis=1), axis=0).sum()  # of 100 clients
        shares.setdefault(exponent, []).append(of_class.nsmallest(2).sum())
    table = pd.DataFrame(shares).T.rename_axis("exponent").rename(columns="seed {}".format)
    found = table.agg(["min", "median", "max"], axis=1)
    return found.join(table[["seed 0", "seed 1", "seed 2"]]).map("{:.1f}".format)


def _best(runs: pd.DataFrame) -> pd.DataFrame:
    """Per cent, by data set, condition and seed, a column for each method."""
    best = 100 * runs.groupby([*LINE, "seed"])["test_acc"].max()
    return best.unstack("method").reindex(columns=[*METHODS])


def _means(values: pd.DataFrame, text: str, by: list[str] = PLACE) -> pd.DataFrame:
    """Mean ± sample standard deviation (number of seeds) of each column."""

    def cell(of: pd.Series) -> str:
        mean, sd, seeds = of.mean(), of.std(), of.count()
        spread = f" ± {text.replace('+', '').format(sd)}" * bool(seeds > 1)
        return f"{text.format(mean)}{spread} ({seeds})".replace("-", "−") if seeds else "–"

    return values.groupby(by, sort=False).agg(cell)


def _median(rounds: pd.Series) -> str:
    """The median over seeds, of which one that did not get there is later than all that did."""
    tried = rounds.dropna()
    median = f"{tried.median():g}" if tried.median() < math.inf else "–"
    return f"{median} ({(tried < math.inf).sum()}/{len(tried)})" if len(tried) else "–"


def filled(page: str, runs: pd.DataFrame) -> str:
    """Return the page with each table, which follows a comment with its name, made anew.

    A cell is mean ± standard deviation (number of seeds); what is compared is of the same seed.
    """
    runs = arrange(runs)
    runs = runs[runs["method"].isin(METHODS) & (runs["condition"] != "single client")]
    tables = {"rarest": rarest()}
    for make in (best, speed, agreement, moves, normalised, served, overhead):
        tables[make.__name__] = make(runs).fillna("–")
    for name, made in tables.items():
        table = made.reset_index().rename(columns={"data": "data set"})
        lines = [[*table], ["---"] * len(table.columns), *table.astype(str).to_numpy().tolist()]
        text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        page = re.sub(rf"(<!-- {name} -->\n)(\|.*\n)*", rf"\g<1>{text}\n", page)
    return page


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(), fp.read_runs(RESULTS)))
