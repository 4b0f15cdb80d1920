"""Compare the methods on digits: each tuned by the same procedure, then run with other seeds.

  python launch/compare.py                                                     # all: hours on a CPU
  python launch/compare.py --methods FedAvg,FedNNNN --conditions two_classes_all --page runs/page

Procedure, for each method in each condition: `fednnnn tune --no-paper` with 8 trials of 20 rounds,
judged by the final accuracy on a sixth of the training images, held out, with a seed of its own;
then five other seeds with the values found, tested on the test images. The same command continues
after any stop; the page is written once all runs are there.
"""

import argparse
import gzip
import json
import logging
import math
import shutil
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import click
import pandas as pd
import yaml
from scipy import stats

import fednnnn_plugin as fp
from fednnnn_plugin.client.method import ClientMethod
from fednnnn_plugin.client.methods import METHODS as CLIENT_METHODS
from fednnnn_plugin.server.rules import RULES

Settings = dict[str, Any]
RECIPE, REFERENCE = "digits_noniid_b_fedavg", "FedNNNN"
SEEDS, TUNING_SEED, TRIALS, ROUNDS, TARGET = (0, 1, 2, 3, 4), 100, 8, 20, 0.8
COMMON: Settings = {"comm_round": ROUNDS, "epochs": 1, "using_gpu": False, "worker_num": 1}
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
RECORDED = ["round", "test_acc", "mean_update_norm", "mean_client_norm"]
RATES = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2)
TWO, FOUR = (0.05, 0.1), (0.02, 0.05, 0.1, 0.2)


class Method(NamedTuple):
    """A method's recipe keys, and the grid of its trials, of which all methods have as many."""

    settings: Settings
    grid: dict[str, tuple[float, ...]]


def _clients(name: str, **grid: tuple[float, ...]) -> Method:
    settings = {"federated_optimizer": "PaperFedAvg", "client_method": name}
    return Method(settings, {"learning_rate": FOUR, **grid} if grid else {"learning_rate": RATES})


def _server(rule: str, **grid: tuple[float, ...]) -> Method:
    rates = {1: RATES, 2: FOUR, 4: TWO}[math.prod(map(len, grid.values()))]
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


def whole(run: Path) -> bool:
    """Return whether a run has made all rounds: one that was stopped has a summary as well."""
    summary = run / "summary.json"
    return summary.exists() and bool(json.loads(summary.read_text())["rounds"] == ROUNDS)


def make(work: Path, condition: str, name: str) -> None:
    """Tune a method in a condition and run it with the other seeds; what is there is kept."""
    method, folder = METHODS[name], work / condition / name
    of_condition = CONDITIONS[condition][1] | COMMON | method.settings
    points = math.prod(map(len, method.grid.values()))
    assert points == TRIALS, f"{name}: {points} trials"
    needed = {key: values[0] for key, values in method.grid.items() if key != "learning_rate"}
    if all(whole(folder / f"seed{seed}") for seed in SEEDS):
        return
    found = fp.tune(
        RECIPE,
        grid={key: list(values) for key, values in method.grid.items()},
        overrides=of_condition | needed | {"random_seed": TUNING_SEED},
        metric="final_accuracy",
        paper=False,
        study=folder / "study",
        resume=True,
    )
    for seed in SEEDS:
        output = folder / f"seed{seed}"
        settings = {"random_seed": seed, "validation_fraction": 0.0}
        fp.run(found.recipe, overrides=settings, output=output, resume="auto")
    click.echo(f"{condition}: {name}: done")


def keep(work: Path, page: Path, condition: str, name: str) -> None:
    """Copy what the page is made of."""
    source, target = work / condition / name, page / condition / name
    target.mkdir(parents=True, exist_ok=True)
    for seed in SEEDS:
        records = (source / f"seed{seed}" / "metrics.jsonl").read_bytes()
        packed = gzip.compress(records, 9, mtime=0)
        (target / f"seed{seed}.jsonl.gz").write_bytes(packed)
    recipe = yaml.safe_load((source / "seed0" / "recipe.yaml").read_text())
    recipe["data_args"]["data_cache_dir"] = "~/fedml_data"
    (target / "tuned.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    shutil.copy(source / "study" / "trials.csv", target / "trials.csv")


def read_results(page: Path, names: list[str]) -> pd.DataFrame:
    """Return a row for each method and seed of the conditions of which a page has all records."""
    rows = []
    there = [each for each in CONDITIONS if all((page / each / name).exists() for name in names)]
    for condition, name, seed in product(there, names, SEEDS):
        packed = page / condition / name / f"seed{seed}.jsonl.gz"
        records = map(json.loads, gzip.decompress(packed.read_bytes()).splitlines())
        rounds = pd.DataFrame(records, columns=RECORDED)
        moved = rounds["mean_client_norm"].where(rounds["mean_client_norm"] > 0)
        row = {"condition": condition, "method": name, "seed": seed}
        row["final"] = 100 * rounds["test_acc"].iloc[-1]
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


def write_page(page: Path, names: list[str]) -> None:
    """Write the page, of the records beside it."""
    results = read_results(page, names)
    text = [
        verdict(results),
        "",
        "# Comparison of the methods on digits",
        "",
        f"Made by `launch/compare.py` from the records beside it. Each of {len(names)} methods had "
        f"{TRIALS} trials of {ROUNDS} rounds in each condition, judged by the final accuracy on a "
        f"sixth of the training images that was held out, with seed {TUNING_SEED}; then seeds "
        f"{', '.join(map(str, SEEDS))} on the test images. 20 clients, 1 epoch a round, batches of "
        "10, the network `nnnn_digits`.",
        "",
        f"In {largest_rates(page, results)} searches the chosen learning rate is the largest that "
        "was tried: 0.2, or 0.1 for a method with four values of other settings. With a larger "
        "one, or in more rounds, the order of the methods may differ.",
        "",
        "Means with 95 % intervals (Student's t); p of paired t-tests by seed, corrected after "
        "Holm within a table; rounds: the median over the seeds that reach "
        f"{100 * TARGET:.0f} % (how many do). N/E: the mean over rounds and seeds, of what is "
        "uploaded. Costs: gradients that a client computes in a step; vectors of the model's size "
        "that it uploads and that it gets in a round. All clients have about as many images and "
        "make as many steps, so that FedNova is FedAvg here.",
        "",
        overview(results),
        "",
    ]
    for condition in results["condition"].unique():
        text += section(page, condition, results)
    (page / "README.md").write_text("\n".join(text))


def main() -> None:
    """Make what lacks, then the page."""
    as_it_is = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_it_is)
    option, some = parser.add_argument, "some of them, by commas; all by default"
    option("--work", type=Path, default=Path("runs/compare"), help="studies and runs")
    option("--page", type=Path, default=Path("results/comparison"), help="page and its records")
    option("--methods", default=",".join(METHODS), help=some)
    option("--conditions", default=",".join(CONDITIONS), help=some)
    asked = parser.parse_args()
    names, conditions = asked.methods.split(","), asked.conditions.split(",")
    for given, known in ((names, METHODS), (conditions, CONDITIONS)):
        if unknown := {*given} - {*known}:
            parser.error(f"{', '.join(sorted(unknown))}: must be some of {', '.join(known)}")
    if REFERENCE not in names:
        parser.error(f"--methods: must have {REFERENCE}, to which the others are compared")
    logging.getLogger("fednnnn_plugin").setLevel(logging.WARNING)
    for condition, name in product(conditions, names):
        make(asked.work, condition, name)
    for condition, name in product(conditions, names):
        keep(asked.work, asked.page, condition, name)
    write_page(asked.page, names)
    click.echo(f"page: {asked.page / 'README.md'}")


if __name__ == "__main__":
    main()
