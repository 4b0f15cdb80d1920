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
NAMES |= {"Fashion-MNIST": "FashionMNIST"}
NAMES |= {"IID": "iid", "non-IID": "n_class"}
NAMES |= {"B": "balanced", "UB": "power_law"}


@pytest.mark.slow
def test_results_page_is_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its accuracies, ranks and counts are also recomputed from ``rounds.csv`` alone."""
    monkeypatch.setattr(build, "drawn", lambda *_: b"")  # is most of the work, and not compared
    made = shutil.ignore_patterns("figures", "README.md", "index.html", "*.csv", "*.tex")
    shutil.copytree(RESULTS, tmp_path, dirs_exist_ok=True, ignore=made)
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
    assert f"the records of {rounds['run'].nunique()} runs ({len(rounds)} rounds)" in page
    for device, count in rounds.groupby("device")["run"].nunique().items():
        assert f"{device} ({count} runs)" in page.replace("\\", "")
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
        sd = [f" ± {spreads[of]:.2f}" * (len(of_seeds) > 1) for of in ("best", "final")]
        cells = [
            f"{means[of]:.2f}{spread} ({len(of_seeds)})"
            for of, spread in zip(("best", "final"), sd, strict=True)
        ]
        count, best, final, paper, *differences, seconds = numbers
        assert int(count) == of_seeds["rounds"].max()
        assert [best.strip("*"), final.strip("*")] == cells
        every = (100 * runs.loc[condition].groupby("method")[["best", "final"]].mean()).round(2)
        first = (every.loc[label] == every.max()) & (len(every) > 1)  # of what is printed
        assert ["**" in best, "**" in final] == [*first]
        if paper != "–":
            above = [round(mean - float(paper), 1) + 0.0 for mean in means]  # no -0.0
            expected = [f"{points:+.1f}".replace("-", "−") for points in above]
            assert differences == expected
        timed = machines[condition] == 1
        assert seconds == (f"{of_seeds['seconds'].mean():.1f}" if timed else "–")


@pytest.mark.slow
def test_claims_tables_are_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PROJECT / "docs")
    import claims

    page = claims.PAGE.read_text()
    assert claims.filled(page, fp.read_runs(RESULTS)) == page
    assert page.count("\n| --- |") == 7


@pytest.mark.slow
def test_comparison_is_that_of_its_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PROJECT / "launch")
    import compare

    kept = RESULTS / "comparison"
    shutil.copytree(kept, tmp_path, dirs_exist_ok=True)
    compare.write_page(tmp_path, [*compare.METHODS])
    page = (kept / "README.md").read_text()
    assert page == (tmp_path / "README.md").read_text()
    (overview,) = (part for part in page.split("\n\n") if part.startswith("| |"))
    assert overview in (PROJECT / "README.md").read_text()
    # Student's t with 4 degrees of freedom: 2.776 times 1/√2, the standard error of 1 to 5.
    five = pd.Series([1.0, 2.0, 3.0, 4.0, 5.0])
    rows = pd.DataFrame({"final": five, "reached": 1, "agreement": 1.0})
    (half,) = compare.summary(rows.assign(condition="", method=""))["half"]
    assert half == pytest.approx(2.7764 / 2**0.5, abs=1e-4)
    # Differences of 1 ± 0.5 and of 0.1 ± 0.5: the smaller p counts twice.
    noise = pd.Series([-0.5, 0.0, 0.5, 0.0, 0.0])
    finals = pd.DataFrame({"FedNNNN": five, "a": five + 1.0 + noise, "b": five + 0.1 + noise})
    found = compare.compared(finals)
    assert found["difference"].tolist() == pytest.approx([1.0, 0.1])
    alone = [float(compare.stats.t.sf(abs(d) / (0.125**0.5 / 5**0.5), 4) * 2) for d in (1.0, 0.1)]
    assert found["p"].tolist() == pytest.approx([2 * alone[0], alone[1]])
