"""The tables of ``results/CLAIMS.md``: ``python docs/claims.py`` writes them from the records."""

import re
from pathlib import Path

import pandas as pd

import fednnnn_plugin as fp
from fednnnn_plugin.reporting.conditions import DATASET_NAMES, METHODS, arrange
from fednnnn_plugin.reporting.paper import PAPER
from fednnnn_plugin.reporting.runs import SECONDS
from fednnnn_plugin.reporting.times import comparable_times

RESULTS = Path(__file__).parents[1] / "results"
PAGE = RESULTS / "CLAIMS.md"
PLACE = ["data", "condition"]
LINE = [*PLACE, "method"]


def speed(runs: pd.DataFrame) -> pd.DataFrame:
    """The first round, a mean over seeds, as accurate as FedAvg of the same seed in the end."""
    ends = runs[runs["method"] == "FedAvg"].groupby([*PLACE, "seed"])["test_acc"].last()
    goals = runs.merge(ends.rename("goal").reset_index(), on=[*PLACE, "seed"])
    reached = goals.assign(reached=goals["round"].where(goals["test_acc"] >= goals["goal"]))
    of_seed = reached.groupby([*LINE, "seed"])["reached"].min()
    rounds = of_seed.groupby(LINE).agg(pd.Series.mean, skipna=False)  # all seeds get there
    rounds = _by_method(rounds).map("{:.0f}".format, na_action="ignore")
    rounds.insert(0, "FedAvg ends with", ends.groupby(PLACE).mean().map("{:.1%}".format))
    return rounds


def agreement(runs: pd.DataFrame) -> pd.DataFrame:
    """N/E in the first and in the last five rounds, and how much of N and of E is left then."""
    norms = runs[["mean_update_norm", "mean_client_norm"]].set_axis(["N", "E"], axis=1)
    norms = runs[LINE].join(norms.assign(ratio=norms["N"] / norms["E"]))
    late = runs["round"] > runs.groupby("run")["round"].transform("max") - 5
    first, last = (
        norms[part].groupby(LINE, sort=False).mean() for part in (runs["round"] <= 5, late)
    )
    table = {"N/E, rounds 1 to 5": first["ratio"], "N/E, last five": last["ratio"]}
    table |= {f"{name}, last five / first": last[name] / first[name] for name in ("N", "E")}
    return pd.DataFrame(table).map("{:.2f}".format)


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
        "β/(1 - γ)": steady["beta"] / (1.0 - gamma),
        "server step / E": move / ours,
        "server step / FedAvg's": move / steady["mean_update_norm_fedavg"],
        "E / FedAvg's E": ours / steady["mean_client_norm_fedavg"],
    }
    means = steady[LINE].assign(**table).groupby(LINE, sort=False).mean()
    return means.dropna(subset="E / FedAvg's E").map("{:.2f}".format, na_action="ignore")


def best(runs: pd.DataFrame) -> pd.DataFrame:
    """The best accuracy, FedNNNN's lead over FedAvg and FedProx in points, and the paper's lead."""
    accuracies = _best(runs)
    paper = pd.Series(PAPER).unstack().rename(DATASET_NAMES, level=0) / 100.0
    table = accuracies.map("{:.1%}".format, na_action="ignore")
    for name, ours in (("FedNNNN's lead", accuracies), ("in the paper", paper)):
        lead = ours["FedNNNN"] - ours[["FedAvg", "FedProx"]].max(axis=1, skipna=False)
        table[name] = lead.map(_points, na_action="ignore")
    return table


def normalised(runs: pd.DataFrame) -> pd.DataFrame:
    """What normalisation adds to the best accuracy, alone and beside momentum, in points."""
    accuracies = _best(runs)
    gains = {
        "Norm-Norm over FedAvg": accuracies["Norm-Norm"] - accuracies["FedAvg"],
        "FedNNNN over Momentum": accuracies["FedNNNN"] - accuracies["Momentum"],
    }
    return pd.DataFrame(gains).dropna().map(_points)


def served(runs: pd.DataFrame) -> pd.DataFrame:
    """Both models' accuracy in the last round, and how much worse the served one was, in points."""
    tested = runs.dropna(subset=["served_test_acc"])
    tested = tested.assign(loss=100.0 * (tested["test_acc"] - tested["served_test_acc"]))
    last = tested.groupby([*LINE, "run"], sort=False)[["test_acc", "served_test_acc"]].last()
    table = last.groupby(LINE, sort=False).mean().map("{:.1%}".format)
    table.columns = pd.Index(["average", "served"])
    loss = tested.groupby(LINE)["loss"]
    for name, points in (("worse by, mean of all rounds", loss.mean()), ("at most", loss.max())):
        table[name] = points.round(1).add(0.0).map("{:.1f}".format).str.replace("-", "−")
    return table


def overhead(runs: pd.DataFrame) -> pd.DataFrame:
    """What the server's arithmetic takes of a round, by its median; not beside other work."""
    runs = runs.groupby("run").filter(comparable_times)
    seconds = runs["seconds.aggregate"]
    parts = {"aggregation (s)": seconds, "of a round": seconds / runs[SECONDS].sum(axis=1)}
    medians = runs[LINE].assign(**parts).groupby(LINE, sort=False).median()
    shown = {"aggregation (s)": "{:.3f}", "of a round": "{:.1%}"}
    return pd.DataFrame({name: medians[name].map(text.format) for name, text in shown.items()})


def _best(runs: pd.DataFrame) -> pd.DataFrame:
    return _by_method(runs.groupby([*LINE, "run"])["test_acc"].max().groupby(LINE).mean())


def _by_method(means: pd.Series) -> pd.DataFrame:
    return means.unstack().reindex(columns=[*METHODS])


def _points(gain: float) -> str:
    return f"{100 * gain:+.1f}".replace("-", "−")


def filled(page: str, runs: pd.DataFrame) -> str:
    """Return the page with each table, which follows a comment with its name, made anew.

    Methods are compared by the seeds that all of a condition have.
    """
    runs = arrange(runs)
    runs = runs[runs["method"].isin(METHODS) & (runs["condition"] != "single client")]
    methods = runs.groupby(PLACE)["method"].transform("nunique")
    runs = runs[runs.groupby([*PLACE, "seed"])["method"].transform("nunique") == methods]
    for make in (best, speed, agreement, moves, normalised, served, overhead):
        table = make(runs).fillna("–").reset_index().rename(columns={"data": "data set"})
        lines = [[*table], ["---"] * len(table.columns), *table.astype(str).to_numpy().tolist()]
        text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        page = re.sub(rf"(<!-- {make.__name__} -->\n)(\|.*\n)*", rf"\g<1>{text}\n", page)
    return page


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(), fp.read_runs(RESULTS)))
