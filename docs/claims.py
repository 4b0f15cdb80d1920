"""The tables of ``results/CLAIMS.md``: ``python docs/claims.py`` writes them from the records."""

import re
from pathlib import Path

import pandas as pd

import fednnnn_plugin as fp
from fednnnn_plugin.report.groups import METHODS, arrange
from fednnnn_plugin.report.runs import SECONDS

RESULTS = Path(__file__).parents[1] / "results"
PAGE = RESULTS / "CLAIMS.md"
PLACE = ["data", "condition"]
LINE = [*PLACE, "method"]


def speed(runs: pd.DataFrame) -> pd.DataFrame:
    """The first round, a mean over seeds, as accurate as FedAvg of the same seed in the end."""
    ends = runs[runs["method"] == "FedAvg"].groupby([*PLACE, "seed"])["test_acc"].last()
    goals = runs.merge(ends.rename("goal").reset_index(), on=[*PLACE, "seed"])
    reached = goals[goals["test_acc"] >= goals["goal"]].groupby([*LINE, "seed"])["round"].min()
    seeds = goals.groupby(LINE)["seed"].nunique()
    rounds = reached.groupby(LINE).mean()[reached.groupby(LINE).size() == seeds]  # all get there
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
    steady = steady.join(fedavg[norms], on=[*PLACE, "seed", "round"], rsuffix="_fedavg")
    gamma = steady.get("gamma", pd.Series(0.0, steady.index)).fillna(0.0)
    ours, move = steady["mean_client_norm"], steady["server_update_norm"]
    table = {
        "β/(1 - γ)": steady["beta"] / (1.0 - gamma),
        "server move / E": move / ours,
        "server move / FedAvg's": move / steady["mean_update_norm_fedavg"],
        "E / FedAvg's E": ours / steady["mean_client_norm_fedavg"],
    }
    means = steady[LINE].assign(**table).groupby(LINE, sort=False).mean()
    return means.dropna(subset="E / FedAvg's E").map("{:.2f}".format, na_action="ignore")


def normalised(runs: pd.DataFrame) -> pd.DataFrame:
    """The best accuracy with and without normalisation, and the difference in points."""
    best = _by_method(runs.groupby([*LINE, "run"])["test_acc"].max().groupby(LINE).mean())
    pairs = best.drop(columns="FedProx").dropna()
    gains = {
        "Norm-Norm's gain": pairs["Norm-Norm"] - pairs["FedAvg"],
        "FedNNNN's over Momentum": pairs["FedNNNN"] - pairs["Momentum"],
    }
    points = pd.DataFrame(gains).map(lambda gain: f"{100 * gain:+.1f}".replace("-", "−"))
    return pairs.map("{:.1%}".format).join(points)


def served(runs: pd.DataFrame) -> pd.DataFrame:
    """Both models' accuracy in the last round, and how much worse the served one was, in points."""
    tested = runs.dropna(subset=["served_test_acc"])
    tested = tested.assign(loss=100.0 * (tested["test_acc"] - tested["served_test_acc"]))
    last = tested.groupby([*LINE, "run"], sort=False)[["test_acc", "served_test_acc"]].last()
    table = last.groupby(LINE, sort=False).mean().map("{:.1%}".format)
    table.columns = pd.Index(["average", "served"])
    loss = tested.groupby(LINE)["loss"]
    table["worse by, mean of all rounds"] = loss.mean().map("{:.1f}".format)
    table["at most"] = loss.max().map("{:.1f}".format)
    return table


def overhead(runs: pd.DataFrame) -> pd.DataFrame:
    """What the server's arithmetic takes of a round, by its median."""
    seconds = runs["seconds.aggregate"]
    parts = {"aggregation (s)": seconds, "of a round": seconds / runs[SECONDS].sum(axis=1)}
    medians = runs[LINE].assign(**parts).groupby(LINE, sort=False).median()
    shown = {"aggregation (s)": "{:.3f}", "of a round": "{:.1%}"}
    return pd.DataFrame({name: medians[name].map(text.format) for name, text in shown.items()})


def _by_method(means: pd.Series) -> pd.DataFrame:
    return means.unstack().reindex(columns=[*METHODS])


def filled(page: str, runs: pd.DataFrame) -> str:
    """Return the page with each table, which follows a comment with its name, made anew."""
    runs = arrange(runs)
    runs = runs[runs["method"].isin(METHODS)]
    for make in (speed, agreement, moves, normalised, served, overhead):
        table = make(runs).fillna("–").reset_index().rename(columns={"data": "data set"})
        lines = [[*table], ["---"] * len(table.columns), *table.astype(str).to_numpy().tolist()]
        text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        page = re.sub(rf"(<!-- {make.__name__} -->\n)(\|.*\n)*", rf"\g<1>{text}\n", page)
    return page


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(), fp.read_runs(RESULTS)))
