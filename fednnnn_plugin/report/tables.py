"""The paper's table beside ours, rounds to an accuracy, and the list of runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from fednnnn_plugin.report.groups import CONDITIONS, differing, value_text
from fednnnn_plugin.report.runs import Run, printable

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
_SETTINGS = {"client_num_in_total": 100, "client_num_per_round": 100, "batch_size": 50}
_SETTINGS |= {"epochs": 5, "learning_rate": 0.05, "classes_per_client": 2}
_OURS = {"validation_fraction": 0, "client_weighting": "uniform", "precision": "fp32"}
_OURS |= {"max_client_norm": None, "client_optimizer": "sgd"}
SETTINGS = {
    "mnist": {"model": "nnnn_mnist", "comm_round": 100, "weight_decay": 0, **_SETTINGS, **_OURS},
    "cifar10": {"model": "nnnn_cifar10", "comm_round": 250, "weight_decay": 5e-4}
    | _SETTINGS
    | _OURS,
}


@dataclass(frozen=True)
class Table:
    """A table of texts: of the first ``groups`` columns, repeated names are left blank.

    Args:
        title: what it shows, with its unit.
        rows: by column; every cell a text.
        strong: (row, column) of cells that stand out.
        notes: lines to print below.
        groups: how many leading columns name a group; columns of numbers follow the next one.
    """

    title: str
    rows: pd.DataFrame
    strong: frozenset[tuple[int, str]] = frozenset()
    notes: tuple[str, ...] = ()
    groups: int = 2

    def cells(self) -> list[tuple[bool, list[str]]]:
        """For each row whether it begins a group, and its texts."""
        found: list[tuple[bool, list[str]]] = []
        before: list[str] = []
        for texts in self.rows.itertuples(index=False):
            row = [printable(text) for text in texts]
            group = row[: self.groups]
            first = group != before
            found.append((first, row if first else [""] * self.groups + row[self.groups :]))
            before = group
        return found

    def text(self) -> str:
        """For a terminal."""
        body = [row for _, row in self.cells()]
        columns = list(self.rows.columns)
        widths = [max(map(len, column)) for column in zip(columns, *body, strict=True)]
        left = self.groups + 1

        def line(cells: Sequence[str]) -> str:
            pairs = zip(cells, widths, strict=True)
            aligned = [c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(pairs)]
            return "  ".join(aligned).rstrip()

        lines = [self.title, "", line(columns), line(["─" * width for width in widths])]
        for index, (first, row) in enumerate(self.cells()):
            lines += [""] * bool(first and index) + [line(row)]
        return "\n".join([*lines, *([""] if self.notes else []), *self.notes]) + "\n"

    def markdown(self) -> str:
        columns = list(self.rows.columns)
        rule = ["---" if i <= self.groups else "---:" for i in range(len(columns))]
        lines = [f"**{_markdown(self.title)}**", "", _pipes(columns), _pipes(rule)]
        for index, texts in enumerate(self.rows.itertuples(index=False)):
            pairs = zip(columns, map(_markdown, texts), strict=True)
            lines.append(_pipes([f"**{t}**" if (index, c) in self.strong else t for c, t in pairs]))
        return "\n".join([*lines, *(f"\n{_markdown(note)}" for note in self.notes)]) + "\n"

    def latex(self) -> str:
        """A ``booktabs`` table."""
        columns = list(self.rows.columns)
        align = "".join("l" if i <= self.groups else "r" for i in range(len(columns)))
        lines = ["% Needs \\usepackage{booktabs}.", "\\begin{table}[t]"]
        lines += [f"\\caption{{{_latex(self.title)}}}", "\\centering"]
        lines += [f"\\begin{{tabular}}{{{align}}}", "\\toprule"]
        lines.append(" & ".join(map(_latex, columns)) + " \\\\")
        for index, (first, row) in enumerate(self.cells()):
            lines += ["\\midrule"] * first
            pairs = zip(columns, map(_latex, row), strict=True)
            texts = [f"\\textbf{{{t}}}" if (index, c) in self.strong else t for c, t in pairs]
            lines.append(" & ".join(texts) + " \\\\")
        lines += ["\\bottomrule", "\\end{tabular}"]
        lines += [f"\n\\smallskip\\footnotesize {_latex(note)}" for note in self.notes]
        return "\n".join([*lines, "\\end{table}"]) + "\n"


def outcomes(runs: pd.DataFrame) -> pd.DataFrame:
    """A line a run: its settings, and ``best``, ``best_round``, ``final``, ``rounds``, seconds.

    Args:
        runs: arranged. Accuracies in [0, 1]; NaN where none was measured.
    """
    tested = runs.dropna(subset=["test_acc"])
    by_run = tested.groupby("run")
    best = tested.loc[by_run["test_acc"].idxmax()].set_index("run")
    seconds = runs[[c for c in runs if str(c).startswith("seconds.")]].sum(axis=1, min_count=1)
    return runs.drop_duplicates("run").set_index("run", drop=False).assign(
        best=best["test_acc"],
        best_round=best["round"],
        final=by_run["test_acc"].last(),
        rounds=runs.groupby("run")["round"].max(),
        seconds=seconds.groupby(runs["run"]).median(),
    )  # fmt: skip


def accuracy(runs: pd.DataFrame) -> pd.DataFrame:
    """A line for each method in a condition, over its seeds.

    Returns:
        Accuracies in [0, 1] with the sample standard deviation (NaN of one run), ``rounds`` the
        fewest of a run, the median ``seconds`` of a round, ``paper`` in per cent, and
        ``unlike_paper``: how the settings differ from the paper's.
    """
    lines = []
    for _, members in outcomes(runs).groupby(["data", "condition", "label"], sort=False):
        head = members.iloc[0]
        where = (head.get("dataset"), head["dealt"], head["sizes"], head["method"])
        rounds = int(members["rounds"].min())
        line = head[["data", "condition", "label", "method"]].to_dict()
        line |= {"seeds": len(members), "rounds": rounds, "planned": head.get("comm_round")}
        for name in ("best", "final"):
            line |= {name: members[name].mean(), f"{name}_sd": members[name].std()}
        line |= {"seconds": members["seconds"].mean(), "paper": PAPER.get(where)}
        line["unlike_paper"] = _unlike_paper(head, rounds) if where in PAPER else ""
        lines.append(line)
    table = pd.DataFrame(lines).astype({"paper": float})
    for name in ("best", "final"):
        table[f"{name}_minus_paper"] = table[name] * 100.0 - table["paper"]
    return table


def accuracy_table(numbers: pd.DataFrame, judged: str) -> Table:
    """Best and final accuracy by condition and method, and the paper's beside them."""
    rows = numbers[["data", "condition"]].rename(columns={"data": "data set"})
    rows["method"] = numbers["label"] + numbers["unlike_paper"].map(lambda text: "*" * bool(text))
    rows["seeds"] = numbers["seeds"].astype(str)
    rows["rounds"] = [
        f"{done} of {value_text(planned)}" if done < planned else str(done)
        for done, planned in zip(numbers["rounds"], numbers["planned"].astype(float), strict=True)
    ]
    for name in ("best", "final"):
        pairs = zip(numbers[name] * 100.0, numbers[f"{name}_sd"] * 100.0, strict=True)
        rows[name] = [with_deviation(mean, sd, 2) for mean, sd in pairs]
    if numbers["paper"].notna().any():
        rows["paper"] = numbers["paper"].map(lambda value: _fixed(value, 1))
        for name in ("best", "final"):
            points = numbers[f"{name}_minus_paper"]
            rows[f"{name} − paper"] = points.map(lambda value: _fixed(value, 1, "+"))
    rows["s a round"] = numbers["seconds"].map(lambda value: _fixed(value, 1))
    strong = set()
    for _, members in numbers.groupby(["data", "condition"], sort=False):
        if len(members) > 1 and members["rounds"].nunique() == 1:  # else no one is the best
            for name in ("best", "final"):
                top = members.index[members[name] == members[name].max()]
                strong |= {(int(index), name) for index in top}
    return Table(f"Accuracy on {judged} (%)", rows, frozenset(strong), _notes(numbers))


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
    averaged = measured.loc[measured["method"] == FEDAVG, "best"]
    lead = ""
    if len(averaged) and row["method"] != FEDAVG:
        lead = f", {(row['best'] - averaged.max()) * 100.0:.1f} points above FedAvg"
    return f"Best: {row['label']}, {text} %{lead}."


def rounds_to(runs: pd.DataFrame, target: float) -> pd.DataFrame:
    """Rounds that each method needs to an accuracy, and the speed-up over FedAvg's.

    There is a speed-up where all seeds of both got there, or all of the method's and none of
    FedAvg's in as many rounds: then it is a lower bound.
    """
    every = outcomes(runs)
    every["reached"] = runs[runs["test_acc"] >= target].groupby("run")["round"].min()
    every["tried"] = every["rounds"].where(every["reached"].isna())
    by_line = every.groupby(["data", "condition", "label"], sort=False)
    table = by_line.agg(
        method=("method", "first"), seeds=("run", "size"), reached=("reached", "count"),
        rounds=("reached", "mean"), sd=("reached", "std"), tried=("tried", "min"),
    ).reset_index()  # fmt: skip
    for _, members in table.groupby(["data", "condition"], sort=False):
        base = members[members["method"] == FEDAVG]
        there = base.loc[base["tried"].isna(), "rounds"].min()
        never = base["tried"].min() if len(base) and not base["reached"].any() else float("nan")
        for index, line in members[members["tried"].isna()].iterrows():
            at_least = pd.isna(there) and never >= line["rounds"]
            speed = (never if at_least else there) / line["rounds"]
            table.loc[index, ["speed_up", "at_least"]] = [speed, float(at_least)]
    return table.reindex(columns=[*table.columns, *{"speed_up", "at_least"} - {*table.columns}])


def rounds_table(numbers: pd.DataFrame, target: float) -> Table:
    """Rounds to an accuracy, and how many times faster than FedAvg."""
    rows = numbers[["data", "condition", "label"]].set_axis(["data set", "condition", "method"], axis=1)
    texts = []
    for line in numbers.itertuples():
        mean = with_deviation(line.rounds, line.sd, 1 if line.reached > 1 else 0)
        partly = f" ({line.reached} of {line.seeds} seeds)" if line.reached < line.seeds else ""
        texts.append(mean + partly if line.reached else f">{line.tried:g}")
    speed = [
        "–" if pd.isna(line.speed_up) else f"{'>' * bool(line.at_least)}{line.speed_up:.1f}×"
        for line in numbers.itertuples()
    ]
    rows = rows.assign(rounds=texts, **{"speed-up over FedAvg": speed})
    return Table(f"Rounds to an accuracy of {target * 100:g} %", rows)


def runs_table(runs: Sequence[Run], arranged: pd.DataFrame) -> Table:
    """Every run that was read, one line each."""
    known = outcomes(arranged) if len(arranged) else pd.DataFrame()
    ratio = arranged["mean_update_norm"] / arranged["mean_client_norm"]
    agree = ratio.replace(float("inf"), float("nan")).groupby(arranged["run"]).last()
    rejected = arranged.groupby("run")["rejected"].sum()
    rows = []
    for run in runs:
        found = known.loc[run.name] if run.name in known.index else pd.Series(dtype=object)
        last, planned = run.last_round, run.planned
        degenerate = int((run.rounds.get("degenerate", pd.Series()) == True).sum())  # noqa: E712
        state = "finished" if run.finished else "unfinished"
        rows.append(
            {
                "run": run.name,
                "data set": found.get("data", "–"),
                "condition": found.get("condition", "–"),
                "method": found.get("label", "–"),
                "seed": value_text(run.identity()["seed"]),
                "rounds": f"{last} of {planned}" if last < planned else str(last),
                "best (%)": _fixed(found.get("best", float("nan")) * 100.0, 2),
                "in round": _fixed(found.get("best_round", float("nan")), 0),
                "final (%)": _fixed(found.get("final", float("nan")) * 100.0, 2),
                "N/E, last": _fixed(agree.get(run.name, float("nan")), 3),
                "rejected": _fixed(rejected.get(run.name, float("nan")), 0),
                "s a round": _fixed(found.get("seconds", float("nan")), 1),
                "state": f"{state}, {degenerate} degenerate rounds" if degenerate else state,
            }
        )
    return Table("Every run that was read", pd.DataFrame(rows), groups=0)


def with_deviation(mean: float, sd: float, digits: int) -> str:
    return _fixed(mean, digits) + ("" if pd.isna(sd) else f" ± {sd:.{digits}f}")


def _fixed(value: float, digits: int, sign: str = "") -> str:
    if pd.isna(value):
        return "–"
    return f"{value:{sign}.{digits}f}".replace("-", "−").replace("−0.0", "+0.0")


def _unlike_paper(head: pd.Series, rounds: int) -> str:
    """The settings that are not the paper's, whose values stand in brackets."""
    wanted = dict(SETTINGS[head["dataset"]])
    if head["dealt"] != "non-IID":
        del wanted["classes_per_client"]
    ours = {key: None if pd.isna(head[key]) else head[key] for key in wanted if key in head}
    other = differing([ours, wanted], ours)
    said = [f"{key} {value_text(ours[key])} ({value_text(wanted[key])})" for key in other]
    if "comm_round" not in other and rounds < wanted["comm_round"]:
        said.append(f"{rounds} rounds so far ({wanted['comm_round']})")
    return ", ".join(said)


def _notes(numbers: pd.DataFrame) -> tuple[str, ...]:
    notes = []
    if (numbers["seeds"] > 1).any():
        notes.append("± is the sample standard deviation over seeds.")
    if numbers["paper"].notna().any():
        notes.append("paper: its table of accuracies, one run each; differences in points.")
    unlike = numbers[numbers["unlike_paper"] != ""]
    for difference, members in unlike.groupby("unlike_paper", sort=False):
        who = ", ".join(dict.fromkeys(members["label"]))
        notes.append(f"* {who}: not the paper's settings, in brackets: {difference}.")
    return tuple(notes)


def _pipes(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


_MARKS = str.maketrans({char: "\\" + char for char in "\\|*_`[]<>#"} | {"&": "&amp;"})
_TEX = {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
_TEX |= {char: "\\" + char for char in "&%$#_{}"}
_TEX |= {"−": "$-$", "×": "$\\times$", "±": "$\\pm$", "–": "--", ">": "$>$", "<": "$<$"}
_TEX |= {"β": "$\\beta$", "γ": "$\\gamma$", "μ": "$\\mu$", "η": "$\\eta$", "λ": "$\\lambda$"}
_TEX |= {"τ": "$\\tau$", "ε": "$\\epsilon$", "α": "$\\alpha$", "…": "\\ldots{}"}


def _markdown(text: str) -> str:
    return printable(text).translate(_MARKS)


def _latex(text: str) -> str:
    return printable(text).translate(str.maketrans(_TEX))
