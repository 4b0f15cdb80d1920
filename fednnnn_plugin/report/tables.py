"""The paper's table beside ours, rounds to an accuracy, and the list of runs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fednnnn_plugin.report.groups import CONDITIONS, LINE, differing, value_text
from fednnnn_plugin.report.runs import SECONDS, printable

FEDAVG = "FedAvg"
# Table tab:accuracy of the paper, in per cent: MNIST and CIFAR-10 by condition. One run each.
_PAPER = """
FedAvg     99.0 81.3  98.2 72.6  99.1 83.5  93.5 56.6
FedProx    99.0 81.4  98.1 74.2  99.1 83.2  87.9 55.6
Norm-Norm  99.1 81.2  99.0 76.7  99.2 83.3  97.1 55.5
Momentum   99.1 83.1  99.2 74.3  99.1 84.2  96.9 62.0
FedNNNN    99.2 84.7  99.1 76.7  99.2 84.0  98.9 61.9
"""
PAPER = {
    (dataset, *condition, line.split()[0]): float(line.split()[1 + 2 * place + column])
    for line in _PAPER.strip().splitlines()
    for place, condition in enumerate(CONDITIONS)
    for column, dataset in enumerate(("mnist", "cifar10"))
}
# Table tab:params, and what it leaves to us.
_SETTINGS: dict[str, object] = {
    "client_num_in_total": 100,
    "client_num_per_round": 100,
    "batch_size": 50,
}
_SETTINGS |= {"epochs": 5, "learning_rate": 0.05, "classes_per_client": 2}
_SETTINGS |= {"validation_fraction": 0, "client_weighting": "uniform", "precision": "fp32"}
_SETTINGS |= {"max_client_norm": None, "client_optimizer": "sgd"}
SETTINGS = {
    "mnist": _SETTINGS | {"model": "nnnn_mnist", "comm_round": 100, "weight_decay": 0},
    "cifar10": _SETTINGS | {"model": "nnnn_cifar10", "comm_round": 250, "weight_decay": 5e-4},
}
Escapes = dict[str, str | int | None]
_TEX: Escapes = {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
_TEX |= {char: f"\\{char}" for char in "&%$#_{}"} | {"–": "--", "…": "\\ldots{}"}
_TEX |= {"−": "$-$", "×": "$\\times$", "±": "$\\pm$", ">": "$>$", "<": "$<$"}
_TEX |= {"β": "$\\beta$", "γ": "$\\gamma$", "μ": "$\\mu$", "η": "$\\eta$", "λ": "$\\lambda$"}
_TEX |= {"τ": "$\\tau$", "ε": "$\\epsilon$", "α": "$\\alpha$"}
_MARKDOWN: Escapes = {"&": "&amp;", **{char: f"\\{char}" for char in "\\|*_`[]<>#"}}


@dataclass(frozen=True)
class Table:
    """A table of texts; its first three columns are data set, condition and method.

    Args:
        title: what it shows, with its unit.
        rows: by column; every cell a text.
        strong: (row, column) of cells that stand out.
        notes: lines to print below.
    """

    title: str
    rows: pd.DataFrame
    strong: frozenset[tuple[int, str]] = frozenset()
    notes: tuple[str, ...] = ()

    def starts(self) -> list[bool]:
        """For each row whether it begins a condition."""
        return list(~self.rows.iloc[:, :2].duplicated())

    def text(self) -> str:
        """For a terminal: a condition is named once."""
        shown = self.rows.map(printable)
        first = shown.columns[:2]
        shown.loc[[not starts for starts in self.starts()], first] = ""
        for column in shown.columns[:3]:
            width = max(shown[column].str.len().max(), len(column))
            shown[column] = shown[column].str.ljust(width)
            shown = shown.rename(columns={column: column.ljust(width)})
        return "\n".join([f"{self.title}\n", shown.to_string(index=False), "", *self.notes]) + "\n"

    def markdown(self) -> str:
        columns = list(self.rows.columns)
        rule = ["---"] * 3 + ["---:"] * (len(columns) - 3)
        lines = [columns, rule, *self._marked("**{}**", _MARKDOWN)]
        table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        notes = (f"\n\n{note.translate(str.maketrans(_MARKDOWN))}" for note in self.notes)
        return f"**{self.title}**\n\n{table}{''.join(notes)}\n"

    def latex(self) -> str:
        """A ``booktabs`` table."""
        columns = list(self.rows.columns)
        rows = [" & ".join(row) + " \\\\" for row in self._marked("\\textbf{{{}}}", _TEX)]
        pairs = zip(self.starts(), rows, strict=True)
        body = [line for starts, row in pairs for line in (["\\midrule"] * starts + [row])]
        title, *head = (text.translate(str.maketrans(_TEX)) for text in (self.title, *columns))
        notes = [
            f"\n\\smallskip\\footnotesize {n.translate(str.maketrans(_TEX))}" for n in self.notes
        ]
        top = ["% Needs \\usepackage{booktabs}.", "\\begin{table}[t]", f"\\caption{{{title}}}"]
        top += ["\\centering", f"\\begin{{tabular}}{{lll{'r' * (len(columns) - 3)}}}", "\\toprule"]
        end = ["\\bottomrule", "\\end{tabular}", *notes, "\\end{table}"]
        return "\n".join([*top, " & ".join(head) + " \\\\", *body, *end]) + "\n"

    def _marked(self, strong: str, escapes: Escapes) -> list[list[str]]:
        shown = self.rows.map(lambda text: printable(text).translate(str.maketrans(escapes)))
        for row, column in self.strong:
            shown.loc[row, column] = strong.format(shown.loc[row, column])
        return shown.to_numpy().tolist()


def outcomes(runs: pd.DataFrame) -> pd.DataFrame:
    """A line a run: its settings, ``best``, ``best_round``, ``final``, ``rounds``, ``seconds``.

    ``runs`` are arranged. Accuracies are in [0, 1], NaN where none was measured; the seconds are
    the median of a round.
    """
    tested = runs.dropna(subset=["test_acc"]).groupby("run")
    best = runs.loc[tested["test_acc"].idxmax()].set_index("run")
    moved = runs["mean_client_norm"].where(runs["mean_client_norm"] > 0.0)
    found = runs.assign(
        seconds=runs[SECONDS].sum(axis=1, min_count=1), ratio=runs["mean_update_norm"] / moved
    )
    by_run = found.groupby("run")
    return runs.drop_duplicates("run").set_index("run", drop=False).assign(
        best=best["test_acc"],
        best_round=best["round"],
        final=tested["test_acc"].last(),
        rounds=by_run["round"].max(),
        seconds=by_run["seconds"].median(),
        ratio=by_run["ratio"].last(),
        rejected=by_run["rejected"].sum(),
        degenerate=by_run["degenerate"].sum(),
    )  # fmt: skip


def accuracy(runs: pd.DataFrame) -> pd.DataFrame:
    """A line for each method in a condition, over its seeds.

    Returns:
        Accuracies in [0, 1] with the sample standard deviation (NaN of one run), ``rounds`` the
        fewest of a run, ``paper`` in per cent, and ``unlike_paper``: how the settings differ.
    """
    table = outcomes(runs).groupby(LINE, sort=False).agg(
        method=("method", "first"), seeds=("run", "size"), rounds=("rounds", "min"),
        best=("best", "mean"), best_sd=("best", "std"),
        final=("final", "mean"), final_sd=("final", "std"), seconds=("seconds", "mean"),
    ).reset_index()  # fmt: skip
    heads = runs.drop_duplicates(LINE).to_dict("records")
    places = [(h.get("dataset"), h["dealt"], h["sizes"], h["method"]) for h in heads]
    planned = [head.get("comm_round", math.nan) for head in heads]
    paper = np.array([PAPER.get(place, math.nan) for place in places])
    unlike = [
        _unlike_paper(head, rounds) if place in PAPER else ""
        for head, rounds, place in zip(heads, table["rounds"], places, strict=True)
    ]
    return table.assign(
        planned=planned, paper=paper, unlike_paper=unlike,
        best_minus_paper=table["best"] * 100.0 - paper,
        final_minus_paper=table["final"] * 100.0 - paper,
    )  # fmt: skip


def accuracy_table(numbers: pd.DataFrame, judged: str) -> Table:
    """Best and final accuracy by condition and method, and the paper's beside them."""
    rows = numbers[["data", "condition"]].rename(columns={"data": "data set"})
    rows["method"] = numbers["label"] + numbers["unlike_paper"].map(lambda text: "*" * bool(text))
    rows["seeds"] = numbers["seeds"].astype(str)
    rows["rounds"] = _rounds(numbers)
    strong = set()
    for name in ("best", "final"):
        pairs = numbers[[name, f"{name}_sd"]] * 100.0
        rows[name] = [with_deviation(mean, sd, 2) for mean, sd in pairs.to_numpy()]
        for _, of in numbers.groupby(["data", "condition"]):
            if len(of) > 1 and of["rounds"].nunique() == 1:  # else no one is the best
                strong |= {(int(row), name) for row in of.index[of[name] == of[name].max()]}
    notes = ["± is the sample standard deviation over seeds."] * bool((numbers["seeds"] > 1).any())
    if numbers["paper"].notna().any():
        rows["paper"] = numbers["paper"].map(lambda value: fixed(value, 1))
        for name in ("best", "final"):
            points = numbers[f"{name}_minus_paper"]
            rows[f"{name} − paper"] = points.map(lambda value: fixed(value, 1, "+"))
        notes.append("paper: its table of accuracies, one run each; differences in points.")
    rows["s a round"] = numbers["seconds"].map(lambda value: fixed(value, 1))
    unlike = numbers[numbers["unlike_paper"] != ""].groupby("unlike_paper", sort=False)["label"]
    for difference, labels in unlike:
        every = len(labels) == numbers["paper"].notna().sum()
        who = "all" if every else ", ".join(dict.fromkeys(labels))
        notes.append(f"* {who}: not the paper's settings, in brackets: {difference}.")
    return Table(f"Accuracy on {judged} (%)", rows, frozenset(strong), tuple(notes))


def headline(numbers: pd.DataFrame) -> str:
    """The best method of a condition and its lead over FedAvg, of runs of equally many rounds."""
    measured = numbers.dropna(subset=["best"])
    if len(measured) < 2:
        return ""
    if measured["rounds"].nunique() > 1:
        low, high = measured["rounds"].min(), measured["rounds"].max()
        return f"Not ranked: the runs have {low} to {high} rounds."
    row = measured.loc[measured["best"].idxmax()]
    text = with_deviation(row["best"] * 100.0, row["best_sd"] * 100.0, 2)
    averaged = measured.loc[measured["method"] == FEDAVG, "best"].max()
    lead = f", {(row['best'] - averaged) * 100.0:.1f} points above FedAvg"
    return f"Best: {row['label']}, {text} %{lead * bool(row['best'] > averaged)}."


def rounds_to(runs: pd.DataFrame, target: float) -> pd.DataFrame:
    """Rounds that each method needs to an accuracy, and the speed-up over FedAvg's.

    There is a speed-up where all seeds of both got there, or all of the method's and none of
    FedAvg's in as many rounds: then it is a lower bound.
    """
    every = outcomes(runs)
    every["reached"] = runs[runs["test_acc"] >= target].groupby("run")["round"].min()
    every["tried"] = every["rounds"].where(every["reached"].isna())
    table = every.groupby(LINE, sort=False).agg(
        method=("method", "first"), seeds=("run", "size"), reached=("reached", "count"),
        rounds=("reached", "mean"), sd=("reached", "std"), tried=("tried", "min"),
    ).reset_index()  # fmt: skip
    table = table.assign(speed_up=math.nan, at_least=False)
    for _, members in table.groupby(["data", "condition"]):
        base = members[members["method"] == FEDAVG]
        there = base.loc[base["tried"].isna(), "rounds"].min()
        never = math.nan if base["reached"].any() else base["tried"].min()
        for index, line in members[members["tried"].isna()].iterrows():
            bound = math.isnan(there) and never >= line["rounds"]
            speed_up = (never if bound else there) / line["rounds"]
            table.loc[index, ["speed_up", "at_least"]] = speed_up, bound
    return table


def rounds_table(numbers: pd.DataFrame, target: float) -> Table:
    """Rounds to an accuracy, and how many times faster than FedAvg."""
    rows = numbers[LINE].set_axis(["data set", "condition", "method"], axis=1)
    texts, speed = [], []
    for line in numbers.itertuples():
        mean = with_deviation(line.rounds, line.sd, 1 if line.reached > 1 else 0)
        partly = f" ({line.reached} of {line.seeds} seeds)" * (line.reached < line.seeds)
        texts.append(mean + partly if line.reached else f">{line.tried:g}")
        known = not math.isnan(line.speed_up)
        speed.append(f"{'>' * line.at_least}{line.speed_up:.1f}×" if known else "–")
    rows = rows.assign(rounds=texts, **{"speed-up over FedAvg": speed})
    return Table(f"Rounds to an accuracy of {target * 100:g} %", rows)


def runs_table(arranged: pd.DataFrame) -> Table:
    """Every run that counts, one line each."""
    found = outcomes(arranged)
    state = found["finished"].astype(bool).map({True: "finished", False: "unfinished"})
    degenerate = found["degenerate"].map(lambda n: f", {n:.0f} degenerate rounds" if n else "")
    columns = {
        "run": found["run"],
        "condition": found["data"] + " " + found["condition"],
        "method": found["label"],
        "seed": found["seed"].map(value_text),
        "rounds": _rounds(found.assign(planned=found.get("comm_round", math.nan))),
        "best (%)": (found["best"] * 100.0).map(lambda v: fixed(v, 2)),
        "in round": found["best_round"].map(lambda v: fixed(v, 0)),
        "final (%)": (found["final"] * 100.0).map(lambda v: fixed(v, 2)),
        "N/E, last": found["ratio"].map(lambda v: fixed(v, 3)),
        "rejected": found["rejected"].map(lambda v: fixed(v, 0)),
        "s a round": found["seconds"].map(lambda v: fixed(v, 1)),
        "state": state + degenerate,
    }
    return Table("Runs", pd.DataFrame(columns))


def _rounds(numbers: pd.DataFrame) -> list[str]:
    pairs = numbers[["rounds", "planned"]].to_numpy()
    return [
        f"{done:g} of {planned:g}" if done < planned else f"{done:g}" for done, planned in pairs
    ]


def with_deviation(mean: float, sd: float, digits: int) -> str:
    return fixed(mean, digits) + ("" if math.isnan(sd) else f" ± {sd:.{digits}f}")


def fixed(value: float, digits: int, sign: str = "") -> str:
    text = f"{value:{sign}.{digits}f}".replace("-", "−")
    return "–" if math.isnan(value) else text.replace("−0.0", "+0.0") if sign else text


def _unlike_paper(head: dict[str, object], rounds: int) -> str:
    """The settings that are not the paper's, whose values stand in brackets."""
    wanted = SETTINGS[str(head["dataset"])]
    known = [
        k for k in wanted if k in head and (k != "classes_per_client" or head["dealt"] != "IID")
    ]
    ours = {key: None if pd.isna(head[key]) else head[key] for key in known}
    other = differing([ours, wanted], known)
    said = [f"{key} {value_text(ours[key])} ({value_text(wanted[key])})" for key in other]
    planned = 100 if head["dataset"] == "mnist" else 250
    if "comm_round" not in other and rounds < planned:
        said.append(f"{rounds} rounds so far ({planned})")
    return ", ".join(said)
