"""What `launch/compare.py` compares, and the page that it makes of the records."""

import gzip
import json
import math
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import yaml
from scipy import stats

from fednnnn_plugin.client.method import ClientMethod
from fednnnn_plugin.client.methods import METHODS as CLIENT_METHODS
from fednnnn_plugin.server.rules import RULES

Settings = dict[str, Any]
REFERENCE = "FedNNNN"
SEEDS, TUNING_SEEDS, MORE_SEEDS = (0, 1, 2, 3, 4), (100, 101), (102, 103, 104)
TRIALS, CANDIDATES, ROUNDS, TARGET = 12, 3, 20, 0.8
CONDITIONS: dict[str, tuple[str, Settings]] = {
    f"{split}_{part}": (f"{name}, {told}", settings | {"client_num_per_round": clients})
    for part, clients, told in (("fifth", 4, "4 of 20 clients"), ("all", 20, "all 20 clients"))
    for split, name, settings in (
        (
            "dirichlet",
            "Dirichlet(0.3)",
            {"partition_method": "dirichlet", "partition_alpha": 0.3, "min_samples": 10},
        ),
        ("two_classes", "two classes a client", {"partition_method": "n_class"}),
    )
}
CHANCE = 10.0  # per cent
RECORDED = ["round", "test_acc", "mean_update_norm", "mean_client_norm"]
# From where methods are slow to where they diverge; fewer where other settings are tried as well.
THREE = (0.1, 0.2, 0.3)
SIX = (0.03, 0.05, 0.1, 0.2, 0.3, 0.4)
TWELVE = (0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.6)


class Method(NamedTuple):
    """A method's recipe keys, and the grid of its trials, of which all methods have as many."""

    settings: Settings
    grid: dict[str, tuple[float, ...]]


def _clients(name: str, **grid: tuple[float, ...]) -> Method:
    settings = {"federated_optimizer": "PaperFedAvg", "client_method": name}
    return Method(settings, {"learning_rate": SIX if grid else TWELVE, **grid})


def _server(rule: str, **grid: tuple[float, ...]) -> Method:
    rates = {1: TWELVE, 2: SIX, 4: THREE}[math.prod(map(len, grid.values()))]
    return Method({"federated_optimizer": rule}, {"learning_rate": rates, **grid})


METHODS = {
    "FedNNNN": _server("FedNNNN", beta=(0.6, 0.8), gamma=(0.6, 0.8)),
    "FedAvg": _server("PaperFedAvg"),
    "FedProx": _server("PaperFedProx", prox_mu=(0.01, 0.1)),
    "Norm-Norm": _server("NormNorm", beta=(0.7, 1.0)),
    "Momentum": _server("Momentum", gamma=(0.7, 0.9)),
    "FedAvgM": _server("FedAvgM", server_lr=(0.3, 1.0), server_momentum=(0.7, 0.9)),
    "FedAdam": _server("FedAdam", server_lr=(0.01, 0.03, 0.1, 0.3)),
    "FedYogi": _server("FedYogi", server_lr=(0.01, 0.03, 0.1, 0.3)),
    "FedAdagrad": _server("FedAdagrad", server_lr=(0.03, 0.1, 0.3, 1.0)),
    "FedExP": _server("FedExP", fedexp_epsilon=(1e-3, 0.1)),
    "FedDyn": _server("FedDyn", feddyn_alpha=(0.01, 0.03, 0.1, 0.3)),
    "SCAFFOLD": _clients("scaffold"),
    "FedNova": _clients("fednova"),
    "FedSAM": _clients("fedsam", sam_rho=(0.05, 0.2)),
    "FedCM": _clients("fedcm", fedcm_beta=(0.5, 0.9)),
}


def final_accuracy(records: bytes) -> float:
    """Return the final accuracy in per cent; chance for a run that ended before its last round."""
    rounds = [json.loads(line) for line in records.splitlines()]
    return 100 * rounds[-1]["test_acc"] if len(rounds) == ROUNDS else CHANCE


def read_results(page: Path) -> pd.DataFrame:
    """Return a row for each seed of the methods that have records in all conditions of a page."""
    there = [each for each in CONDITIONS if (page / each).is_dir()]
    names = [name for name in METHODS if all((page / each / name).is_dir() for each in there)]
    if REFERENCE not in names or len(names) < 2:
        must = f"{REFERENCE} and another method must have records in all of {', '.join(there)}"
        raise SystemExit(f"{page}: {must}")
    rows = []
    for condition, name, seed in product(there, names, SEEDS):
        packed = page / condition / name / f"seed{seed}.jsonl.gz"
        records = gzip.decompress(packed.read_bytes())
        rounds = pd.DataFrame(map(json.loads, records.splitlines()), columns=RECORDED)
        moved = rounds["mean_client_norm"].where(rounds["mean_client_norm"] > 0)
        row = {"condition": condition, "method": name, "seed": seed}
        row["whole"] = len(rounds) == ROUNDS
        row["final"] = final_accuracy(records)
        row["reached"] = rounds.loc[rounds["test_acc"] >= TARGET, "round"].min()
        row["agreement"] = (rounds["mean_update_norm"] / moved).mean()
        rows.append(row)
    return pd.DataFrame(rows)


def summary(results: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each condition and method, ``half`` an interval of 95 % (Student's t)."""
    found = results.groupby(["condition", "method"], sort=False).agg(
        mean=("final", "mean"), half=("final", "sem"), reached=("reached", "median"),
        reaching=("reached", "count"), agreement=("agreement", "mean"),
    )  # fmt: skip
    return found.assign(half=found["half"] * stats.t.ppf(0.975, len(SEEDS) - 1))


def costs(name: str) -> tuple[int, int, int]:
    """Return gradients a step, vectors that a client uploads, and that the server sends."""
    settings = METHODS[name].settings
    of = settings.get("client_method") or RULES[settings["federated_optimizer"]].client_method
    method = CLIENT_METHODS[of] if of else ClientMethod
    return method.evaluations, 1 + len(method.returns), 1 + len(method.sends)


def compared(finals: pd.DataFrame) -> pd.DataFrame:
    """Return, by method, the mean difference to FedNNNN and its p, paired by seed, after Holm.

    ``finals`` has a row for each seed and a column for each method.
    """
    differences = finals.drop(columns=REFERENCE).sub(finals[REFERENCE], axis=0)
    p = differences.agg(
        lambda of: stats.ttest_1samp(of, 0.0).pvalue if of.nunique() > 1 else 1.0
    ).sort_values(kind="stable")
    holm = (p * range(len(p), 0, -1)).clip(upper=1.0).cummax()
    return pd.DataFrame({"difference": differences.mean(), "p": holm})


def tuned(page: Path, condition: str, name: str) -> Settings:
    """Return the settings that the search has found."""
    recipe = yaml.safe_load((page / condition / name / "tuned.yaml").read_text())
    train: Settings = recipe["train_args"]
    return train


def largest_rates(page: Path, results: pd.DataFrame) -> str:
    """Return how many searches chose the largest learning rate of their grid."""
    searches = results[["condition", "method"]].drop_duplicates().to_numpy()
    largest = [
        tuned(page, condition, name)["learning_rate"] == max(METHODS[name].grid["learning_rate"])
        for condition, name in searches
    ]
    return f"{sum(largest)} of {len(largest)}"


def section(page: Path, condition: str, results: pd.DataFrame) -> list[str]:
    """Return the table of a condition."""
    of = results[results["condition"] == condition]
    tests = compared(of.pivot(index="seed", columns="method", values="final"))
    head = "| method | final accuracy, % | difference to FedNNNN (p) "
    head += f"| rounds to {100 * TARGET:.0f} % (of {len(SEEDS)}) | N/E "
    head += "| gradients a step | up, down | chosen |"
    lines = [f"## {CONDITIONS[condition][0]}", "", head, f"| --- |{' ---: |' * 6} --- |"]
    lines_of = summary(of).loc[condition].sort_values("mean", ascending=False, kind="stable")
    for name, each in lines_of.iterrows():
        rounds = f"{each['reached']:g}" if each["reaching"] else "–"
        test = "{:+.2f} ({:.3f})".format(*tests.loc[name]) if name in tests.index else "–"
        gradients, up, down = costs(str(name))
        train = tuned(page, condition, str(name))
        chosen = ", ".join(f"{key} {train[key]:g}" for key in METHODS[str(name)].grid)
        lines.append(
            f"| {name} | {each['mean']:.2f} ± {each['half']:.2f} | {test} "
            f"| {rounds} ({each['reaching']:.0f}) "
            f"| {each['agreement']:.3f} | {gradients} | {up}, {down} | {chosen} |"
        )
    return [*lines, ""]


def verdict(results: pd.DataFrame) -> str:
    """Return the page's first line: where FedNNNN is the best, and where it is not."""
    means = summary(results)["mean"].unstack()[results["method"].unique()]
    best = means.idxmax(axis=1)[results["condition"].unique()]
    won = [CONDITIONS[key][0] for key, name in best.items() if name == REFERENCE]
    lost = [f"{CONDITIONS[key][0]} ({name})" for key, name in best.items() if name != REFERENCE]
    if not lost:
        return "FedNNNN has the highest mean accuracy in every condition."
    where = f"FedNNNN does not have the highest mean accuracy in {len(lost)} of {len(best)} "
    where += f"conditions: {'; '.join(lost)}."
    return where + (f" It has it in: {'; '.join(won)}." if won else "")


def overview(results: pd.DataFrame) -> str:
    """Return the table of all final accuracies, the best mean over the conditions first."""
    found = summary(results)
    texts = [f"{mean:.1f} ± {half:.1f}" for mean, half in found[["mean", "half"]].to_numpy()]
    conditions, names = results["condition"].unique(), results["method"].unique()
    cells = found.assign(text=texts)["text"].unstack().loc[conditions]
    order = found["mean"].unstack()[names].mean().sort_values(ascending=False, kind="stable")
    head = " | ".join(CONDITIONS[key][0] for key in conditions)
    lines = [f"| | {head} |", "| --- |" + " ---: |" * len(conditions)]
    return "\n".join([*lines, *(f"| {name} | {' | '.join(cells[name])} |" for name in order.index)])


def write_page(page: Path) -> list[str]:
    """Write the page, of the methods that have records beside it in all its conditions: these."""
    results = read_results(page)
    names: list[str] = [*results["method"].unique()]
    text = [
        verdict(results),
        "",
        "# Comparison of the methods on digits",
        "",
        f"Made by `launch/compare.py` from the records beside it. Each of {len(names)} methods had "
        f"{TRIALS} trials of {ROUNDS} rounds in each condition, judged by the final accuracy on a "
        f"sixth of the training images that was held out, in the mean of seeds "
        f"{' and '.join(map(str, TUNING_SEEDS))}. The {CANDIDATES} best had seeds "
        f"{', '.join(map(str, MORE_SEEDS))} as well, and the best mean of all was chosen: then "
        f"seeds {', '.join(map(str, SEEDS))} on the test images. 20 clients, 1 epoch a round, "
        "batches of 10, the network `nnnn_digits`.",
        "",
        f"Learning rates are up to {max(TWELVE):g}, {max(SIX):g} or {max(THREE):g}, for methods "
        "with one, two or four values of other settings; "
        f"{largest_rates(page, results)} searches chose their largest. "
        f"{(~results['whole']).sum()} of {len(results)} runs ended before round {ROUNDS}, as no "
        f"client's update was finite any more; such a run counts as chance, {CHANCE:g} %. With "
        "more rounds the order of the methods may differ.",
        "",
        "Means with 95 % intervals (Student's t); p of paired t-tests by seed, corrected after "
        "Holm within a table; rounds: the median over the seeds that reach "
        f"{100 * TARGET:.0f} % (how many do). N/E: the mean over rounds and seeds, of what is "
        "uploaded. Costs: gradients that a client computes in a step; vectors of the model's size "
        "that it uploads and that it gets in a round. All clients have about the same number of "
        "images and make about the same number of steps, so that FedNova is FedAvg here.",
        "",
        overview(results),
        "",
    ]
    for condition in results["condition"].unique():
        text += section(page, condition, results)
    (page / "README.md").write_text("\n".join(text))
    return names
