"""The paper's table beside ours, and the rounds to an accuracy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.report.arguments import check_finite
from fednnnn_plugin.report.conditions import (
    LINE,
    SYMBOLS,
    UNRECORDED,
    differing,
    judged,
    value_text,
)
from fednnnn_plugin.report.judging import ACCURACY, final_values, scale, with_unit, with_values
from fednnnn_plugin.report.paper import PAPER, SETTINGS, unlike_paper
from fednnnn_plugin.report.runs import SECONDS, WAITED

FEDAVG = "FedAvg"
_FIRST = ["data set", "condition", "method"]
BUSY = 0.2  # a run that waited so much of its time for a core ran beside other work
_SHOWN: tuple[str, ...] = (
    "client_num_in_total",
    "client_num_per_round",
    "learning_rate",
    "batch_size",
)
_SHOWN += ("beta", "gamma", "prox_mu", "server_lr")
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

    def latex(self) -> str:
        """For pdfLaTeX with booktabs: numbers to the right, what stands out bold, the notes."""
        rows = self.rows.map(latex)
        for row, column in self.strong:
            rows.loc[row, column] = rf"\textbf{{{rows.loc[row, column]}}}"
        rows.columns = pd.Index(map(latex, rows.columns))
        how = "lll" + "r" * (len(rows.columns) - 3)
        table = rows.to_latex(index=False, escape=False, column_format=how)
        notes = [rf"\par{{\footnotesize {latex(note)}}}" for note in self.notes]
        return "\n".join([r"% needs \usepackage{booktabs}", table.strip(), *notes]) + "\n"


_LATEX = str.maketrans(
    {char: f"\\{char}" for char in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"β": r"$\beta$", "γ": r"$\gamma$", "μ": r"$\mu$", "η": r"$\eta$", "λ": r"$\lambda$"}
    | {"α": r"$\alpha$", "τ": r"$\tau$", "ε": r"$\varepsilon$", "±": r"$\pm$", "×": r"$\times$"}
    | {"−": "$-$", "<": "$<$", ">": "$>$", "–": "--", "…": r"\dots{}", "√": r"$\surd$"}
)


def latex(text: str) -> str:
    """Text that pdfLaTeX sets as it is; a letter that its fonts lack as its code point."""
    known = (
        c if c in "–…√−" or ord(c) < 0x180 or ord(c) in _LATEX else f"[U+{ord(c):04X}]"
        for c in text
    )
    return "".join(known).translate(_LATEX)


def escaped(text: str) -> str:
    """Text that Markdown shows as it is."""
    return text.translate(_MARKDOWN)


def outcomes(runs: pd.DataFrame) -> pd.DataFrame:
    """A line a run, arranged: what identifies it, its ``best`` and ``final`` value, ...

    ``metric`` says what the values are; accuracies are in [0, 1], NaN where none was measured.
    ``final`` is of the last tested round; ``tests`` is how many rounds have a value; ``seconds``
    are the median of a round.
    """
    runs = with_values(runs)
    heads = runs.drop_duplicates("run").set_index("run", drop=False)
    values = runs.groupby("run")["value"]
    lower = heads["lower_is_better"]
    best = values.max().where(~lower.fillna(False), values.min()).where(lower.notna())
    heads = heads.assign(best=best, final=final_values(runs), tests=values.count())
    seconds = runs[SECONDS].sum(axis=1).groupby(runs["run"]).median()
    seconds = seconds[seconds > 0.0]  # a custom loop does not measure them
    return heads.assign(seconds=seconds, rounds=runs.groupby("run")["round"].max())


def averaged(every: pd.DataFrame) -> pd.DataFrame:
    """One row for each line of ``outcomes``: means and sample standard deviations over seeds."""
    every = every.assign(untested=every["rounds"] - every["tests"])
    return every.groupby(LINE, sort=False).agg(
        method=("method", "first"), seeds=("run", "size"),
        rounds=("rounds", "min"), most_rounds=("rounds", "max"), untested=("untested", "max"),
        best=("best", "mean"), best_sd=("best", "std"),
        final=("final", "mean"), final_sd=("final", "std"), seconds=("seconds", "mean"),
        metric=("metric", "first"), lower=("lower_is_better", "first"),
    ).reset_index()  # fmt: skip


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
    strong, notes = _strong(numbers, every, lower)
    notes += _missing(every)
    notes += ["± is the sample standard deviation over seeds."] * bool((numbers["seeds"] > 1).any())
    if numbers["paper"].notna().any():
        rows["paper"] = _fixed(numbers["paper"], 1)
        for name in ("best", "final"):
            rows[f"{name} − paper"] = _fixed(numbers[name] * 100.0 - numbers["paper"], 1, "+")
        notes.append("paper: the accuracies in its table, of one run each; differences in points.")
    alike = [name for name, part in runs.groupby(LINE[:2]) if comparable_times(part)]
    timed = pd.MultiIndex.from_frame(numbers[LINE[:2]]).isin(alike)
    numbers["seconds"] = numbers["seconds"].where(timed)
    if numbers["seconds"].notna().any():
        rows["s a round"] = _fixed(numbers["seconds"], 1)
        notes.append(f"s a round: median. {times_note(runs)}".strip())
    if not timed.all():
        notes.append(
            "No times are shown for a condition with runs from different machines or beside other "
            "work."
        )
    notes += _machines(runs)
    unlike = numbers[numbers["unlike_paper"] != ""].groupby("unlike_paper", sort=False)["label"]
    for difference, labels in unlike:
        who = ", ".join(labels.unique())
        notes.append(f"* {who}: not the paper's settings, in brackets: {difference}.")
    title = f"{judged(runs).capitalize()} {', '.join(numbers['metric'].map(with_unit).unique())}"
    return Table(title, numbers, rows, frozenset(strong), tuple(notes))


def _strong(
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


def _values(numbers: pd.DataFrame, name: str) -> pd.Series[str]:
    """The texts of a column of values, each in the scale of its metric."""
    parts = []
    for metric, of in numbers.groupby("metric"):
        factor, digits = scale(str(metric))
        parts.append(_means(of[name] * factor, of[f"{name}_sd"] * factor, digits))
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


def _machines(runs: pd.DataFrame) -> Iterator[str]:
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
    (text,), (label, _) = _means(best["mean"], best["std"], digits), best.index[0]
    fedavg = (methods["mean"][methods.index.isin([FEDAVG], level="method")] * sign).max()
    lead = best["mean"].iloc[0] * sign - fedavg  # NaN without it
    of_accuracy = metric == ACCURACY
    by = f"{lead:.1f} points" if of_accuracy else f"{lead:.3g}"
    above = f", {by} {'below' if sign < 0 else 'above'} FedAvg" * bool(lead > 0.0)
    said = f"{text} %" if of_accuracy else f"{metric} {text}"
    shared = " that all methods have" * bool(len(compared) < every["best"].count())
    return f"Best: {label}, {said}{above}; {_extent(compared)}{shared}."


def settings(runs: pd.DataFrame) -> str:
    """The settings of a condition's lines: those of all, then what each line has of its own."""
    heads = runs.drop_duplicates("label").set_index("label")
    keys = [key for key in _SHOWN if key in heads and heads[key].notna().any()]
    own = differing(heads, keys)
    parts = [f"{SYMBOLS[key]} {value_text(heads[key].iloc[0])}" for key in keys if key not in own]
    for label, values in heads[own].astype(object).iterrows():
        told = [f"{SYMBOLS[k]} {value_text(v)}" for k, v in values.dropna().items()]
        parts += [f"{label}: {', '.join(told)}"] * bool(told)
    return f"Settings: {'; '.join(parts)}." if parts else ""


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
    rows["rounds"] = _means(numbers["rounds"], numbers["sd"], int(numbers["seeds"].max() > 1))
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


def reaching(runs: pd.DataFrame, every: pd.DataFrame, target: float) -> pd.DataFrame:
    """For each line its ``seeds``, how many ``reached`` a value, and after how many ``rounds``.

    ``rounds`` and their ``sd`` are NaN unless all did; ``every`` are the runs' ``outcomes``.
    """
    check_finite("--target", target)
    if {*every["metric"]} == {ACCURACY} and not 0.0 < target <= 1.0:
        raise UserError(f"--target: {target:g}: an accuracy must be above 0 and at most 1")
    runs = with_values(runs)
    lower = runs["lower_is_better"]
    there = (runs["value"] >= target).where(~lower.fillna(False), runs["value"] <= target)
    first = runs[there & lower.notna()].groupby("run")["round"].min()
    told = every.assign(first=first, tested=every["best"].notna())
    numbers = told.groupby(LINE, sort=False).agg(
        seeds=("run", "size"), reached=("first", "count"), tested=("tested", "any"),
        shortest=("rounds", "min"), rounds=("first", "mean"), sd=("first", "std"),
    ).reset_index()  # fmt: skip
    all_of_them = numbers["reached"] == numbers["seeds"]
    return numbers.assign(**{of: numbers[of].where(all_of_them) for of in ("rounds", "sd")})


def _fixed(values: pd.Series[float], digits: int, sign: str = "") -> pd.Series[str]:
    texts = values.map(lambda value: f"{value:{sign}.{digits}f}".replace("-", "−"))
    return texts.where(values.notna(), "–")


def _means(means: pd.Series[float], sds: pd.Series[float], digits: int) -> pd.Series[str]:
    texts = _fixed(means, digits)
    return texts.where(sds.isna(), texts + " ± " + _fixed(sds, digits))
