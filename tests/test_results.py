"""``results/``: its pages are those that its records make."""

import re
from pathlib import Path

import pandas as pd
import pytest

import fednnnn_plugin as fp
from fednnnn_plugin.report import build

PROJECT = Path(__file__).parents[1]
RESULTS = PROJECT / "results"
CONDITION = ["dataset", "partition_method", "partition_sizes"]
NAMES = {"MNIST": "mnist", "digits": "digits", "IID": "iid", "non-IID": "n_class"}
NAMES |= {"B": "balanced", "UB": "power_law"}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "drawn", lambda *_: b"")  # is most of the work, and not compared
        build.build_report([RESULTS], folder)
    return folder


@pytest.mark.slow
def test_results_page_is_the_report(report: Path) -> None:
    assert (RESULTS / "README.md").read_text() == (report / "README.md").read_text()
    figures = [{path.relative_to(of) for path in of.rglob("*.svg")} for of in (RESULTS, report)]
    assert figures[0] == figures[1]


@pytest.mark.slow
def test_results_table_recomputed_with_pandas(report: Path) -> None:
    """Each number of the table of accuracies, from ``rounds.csv`` alone."""
    rounds = pd.read_csv(report / "rounds.csv").sort_values(["run", "round"])
    parts = ["seconds.train", "seconds.aggregate", "seconds.evaluate"]
    rounds["seconds"] = rounds[parts].sum(axis=1)
    runs = rounds.groupby([*CONDITION, "method", "run"]).agg(
        best=("test_acc", "max"),
        final=("test_acc", "last"),
        rounds=("round", "max"),
        seconds=("seconds", "median"),
    )
    machines = rounds.groupby(CONDITION)["device"].nunique()
    times = rounds.groupby([*CONDITION, "run"])[["seconds.waited", "seconds"]].sum()
    waited = (times["seconds.waited"] > 0.2 * times["seconds"]).groupby(CONDITION).any()
    lines = (report / "README.md").read_text().split("**Test accuracy (%)**")[1].splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][2:]
    methods = [each for _, each in runs.groupby([*CONDITION, "method"])]
    assert len(rows) == len(methods) == 30
    for data, where, method, *numbers in rows:
        condition = (NAMES[data], *(NAMES[part] for part in where.split(", ")))
        of_seeds = runs.loc[(*condition, re.sub(r"\\\*| \(η.*\)", "", method))]

        def accuracy(column: str, of_seeds: pd.DataFrame = of_seeds) -> str:
            percent = of_seeds[column] * 100
            spread = f" ± {percent.std():.2f}" if len(percent) > 1 else ""
            return f"{percent.mean():.2f}{spread}"

        seeds, count, best, final, paper, *differences, seconds = numbers
        assert (int(seeds), int(count)) == (len(of_seeds), of_seeds["rounds"].max())
        assert (best.strip("*"), final.strip("*")) == (accuracy("best"), accuracy("final"))
        if paper != "–":
            means = of_seeds[["best", "final"]].mean() * 100 - float(paper)
            assert differences == [f"{mean:+.1f}".replace("-", "−") for mean in means]
        timed = machines[condition] == 1 and not waited[condition]
        assert seconds == (f"{of_seeds['seconds'].mean():.1f}" if timed else "–")


@pytest.mark.slow
def test_claims_tables_are_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PROJECT / "docs")
    import claims

    page = claims.PAGE.read_text()
    assert claims.filled(page, fp.read_runs(RESULTS)) == page
    assert page.count("\n| --- |") == 7
