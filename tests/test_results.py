"""``results/``: its pages are those that its records make."""

import shutil
from pathlib import Path

import pandas as pd
import pytest

import fednnnn_plugin as fp
from fednnnn_plugin.reporting import build

PROJECT = Path(__file__).parents[1]
RESULTS = PROJECT / "results"
CONDITION = ["dataset", "partition_method", "partition_sizes", "alone"]
NAMES = {"MNIST": "mnist", "CIFAR-10": "cifar10", "digits": "digits"}
NAMES |= {"IID": "iid", "non-IID": "n_class"}
NAMES |= {"B": "balanced", "UB": "power_law"}


@pytest.mark.slow
def test_results_page_is_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its accuracies, ranks and counts are also recomputed from ``rounds.csv`` alone."""
    monkeypatch.setattr(build, "drawn", lambda *_: b"")  # is most of the work, and not compared
    shutil.copytree(RESULTS, tmp_path, dirs_exist_ok=True)
    (tmp_path / "README.md").unlink()
    build.build_report([tmp_path], tmp_path)
    page = (RESULTS / "README.md").read_text()
    assert page == (tmp_path / "README.md").read_text()
    figures = [{path.relative_to(of) for path in of.rglob("*.svg")} for of in (RESULTS, tmp_path)]
    assert figures[0] == figures[1]

    rounds = pd.read_csv(tmp_path / "rounds.csv").sort_values(["run", "round"])
    parts = ["seconds.train", "seconds.aggregate", "seconds.evaluate"]
    rounds["seconds"] = rounds[parts].sum(axis=1)
    rounds["alone"] = rounds["client_num_in_total"] == 1
    runs = rounds.groupby([*CONDITION, "method", "run"]).agg(
        seed=("seed", "first"),
        best=("test_acc", "max"),
        final=("test_acc", "last"),
        rounds=("round", "max"),
        seconds=("seconds", "median"),
    )
    machines = rounds.groupby(CONDITION)["device"].nunique()
    times = rounds.groupby([*CONDITION, "run"])[["seconds.waited", "seconds"]].sum()
    waited = (times["seconds.waited"] > 0.2 * times["seconds"]).groupby(CONDITION).any()
    assert f"the records of {rounds['run'].nunique()} runs ({len(rounds)} rounds)" in page
    for device, count in rounds.groupby("device")["run"].nunique().items():
        assert f"{device} ({count} runs)" in page
    lines = page.split("**Test accuracy (%)**")[1].splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][2:]
    assert len(rows) == runs.groupby([*CONDITION, "method"]).ngroups
    for data, where, method, *numbers in rows:
        split = "IID, B" if (alone := where == "single client") else where
        condition = (NAMES[data], *(NAMES[part] for part in split.split(", ")), alone)
        name = method.removesuffix("\\*")
        label = "FedAvg" if alone else name.partition(" (η")[0]
        of_seeds = runs.loc[(*condition, label)]
        means, spreads = (100 * of_seeds[["best", "final"]].agg(of) for of in ("mean", "std"))
        several = len(of_seeds) > 1
        accuracies = [
            f"{means[of]:.2f} ± {spreads[of]:.2f}" if several else f"{means[of]:.2f}"
            for of in ("best", "final")
        ]
        seeds, count, best, final, paper, *differences, seconds = numbers
        assert (int(seeds), int(count)) == (len(of_seeds), of_seeds["rounds"].max())
        assert [best.strip("*"), final.strip("*")] == accuracies
        every = runs.loc[condition]
        shared = set.intersection(*(set(of) for _, of in every.groupby("method")["seed"]))
        ranked = every[every["seed"].isin(shared)].groupby("method")[["best", "final"]].mean()
        first = (ranked.loc[label] == ranked.max()) & (len(ranked) > 1)
        assert ["**" in best, "**" in final] == [*first]
        if first["best"]:
            headline = page.split(f"## {data}: {where}\n\n")[1].partition(" Settings")[0]
            lead = 100 * (ranked["best"].max() - ranked["best"]["FedAvg"])
            assert headline.startswith(f"Best: {name}, {100 * ranked['best'].max():.2f} ")
            assert f" %, {lead:.1f} points above FedAvg; {count} " in headline
        if paper != "–":
            expected = [f"{mean - float(paper):+.1f}".replace("-", "−") for mean in means]
            assert differences == expected
        timed = machines[condition] == 1 and not waited[condition]
        assert seconds == (f"{of_seeds['seconds'].mean():.1f}" if timed else "–")


@pytest.mark.slow
def test_claims_tables_are_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PROJECT / "docs")
    import claims

    page = claims.PAGE.read_text()
    assert claims.filled(page, fp.read_runs(RESULTS)) == page
    assert page.count("\n| --- |") == 7
