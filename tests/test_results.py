"""``results/``: its pages are those that its records make."""

import gzip
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import create_autospec

import pandas as pd
import pytest

import fednnnn_plugin as fp
from fednnnn_plugin.reporting import build

PROJECT = Path(__file__).parents[1]
RESULTS = PROJECT / "results"


@pytest.mark.slow
def test_results_page_is_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "drawn", lambda *_: b"")  # is most of the work, and not compared
    made = shutil.ignore_patterns("figures", "README.md", "index.html", "*.csv", "*.tex")
    shutil.copytree(RESULTS, tmp_path, dirs_exist_ok=True, ignore=made)
    build.build_report([tmp_path], tmp_path)
    page = (RESULTS / "README.md").read_text()
    assert page == (tmp_path / "README.md").read_text()
    figures = [{path.relative_to(of) for path in of.rglob("*.svg")} for of in (RESULTS, tmp_path)]
    assert figures[0] == figures[1]


@pytest.mark.slow
def test_claims_tables_are_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PROJECT / "docs")
    import claims

    page = claims.PAGE.read_text()
    assert claims.filled(page, fp.read_runs(RESULTS)) == page
    assert page.count("\n| --- |") == 8
    page = " ".join(page.split())
    for name, said in (
        ("power_law/fedprox-exponent1.05-seed2", " and {:.1f} % with 1.9 (exponent 1.05, seed 2; "),
        (
            "power_law/fedprox-exponent1.059-seed0",
            "With 1.1 (exponent 1.059, seed 0, the same command) it has {:.1f} ",
        ),
        ("iid_100/fedavg-ub-seed0", "Of 100 rounds FedAvg's best is {:.2f} %, in round 97"),
        (
            "iid_100/fednnnn-ub-seed0",
            "and FedNNNN's {:.2f} %, in round 26; the means of their last",
        ),
        ("mnist_iid_b_fedavg-seed0/metrics", "FedAvg's best is {:.2f} %, in round 90"),
        ("mnist_iid_b_fednnnn-seed0/metrics", "FedNNNN's best is {:.2f} %, in round 28"),
        ("mnist_iid_b_normnorm-seed0/metrics", "Norm-Norm's best is {:.2f} %, in round 91"),
        ("mnist_iid_b_fedprox-seed0/metrics", "FedProx's best is {:.2f} %, in round 95"),
        ("mnist_iid_b_momentum-seed0/metrics", "Momentum's best is {:.2f} %, in round 34"),
    ):
        with gzip.open(RESULTS / f"{name}.jsonl.gz") as lines:
            best = max(json.loads(line)["test_acc"] for line in lines)
        assert said.format(100 * best) in page


@pytest.mark.slow
def test_comparison_is_that_of_its_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PROJECT / "launch")
    import comparison

    kept = RESULTS / "comparison"
    shutil.copytree(kept, tmp_path, dirs_exist_ok=True)
    monkeypatch.setitem(comparison.METHODS, "not run yet", comparison.METHODS["FedAvg"])
    comparison.write_page(tmp_path)
    page = (kept / "README.md").read_text()
    assert page == (tmp_path / "README.md").read_text()
    (tmp_path / "dirichlet_all" / "FedCM").rename(tmp_path / "FedCM")
    there = comparison.write_page(tmp_path)
    assert {*comparison.METHODS} - {*there} == {"FedCM", "not run yet"}
    (tmp_path / "dirichlet_all" / "FedNNNN").rename(tmp_path / "FedNNNN")
    with pytest.raises(SystemExit, match="FedNNNN and another method must have records in all of "):
        comparison.write_page(tmp_path)
    (overview,) = (part for part in page.split("\n\n") if part.startswith("| |"))
    assert overview in (PROJECT / "README.md").read_text()
    # Student's t with 4 degrees of freedom: 2.776 times 1/√2, the standard error of 1 to 5.
    five = pd.Series([1.0, 2.0, 3.0, 4.0, 5.0])
    rows = pd.DataFrame({"final": five, "reached": 1, "agreement": 1.0})
    (half,) = comparison.summary(rows.assign(condition="", method=""))["half"]
    assert half == pytest.approx(2.7764 / 2**0.5, abs=1e-4)
    # Differences of 1 ± 0.5 and of 0.1 ± 0.5: the smaller p counts twice.
    noise = pd.Series([-0.5, 0.0, 0.5, 0.0, 0.0])
    finals = pd.DataFrame({"FedNNNN": five, "a": five + 1.0 + noise, "b": five + 0.1 + noise})
    found = comparison.compared(finals)
    assert found["difference"].tolist() == pytest.approx([1.0, 0.1])
    alone = [
        float(comparison.stats.t.sf(abs(d) / (0.125**0.5 / 5**0.5), 4) * 2) for d in (1.0, 0.1)
    ]
    assert found["p"].tolist() == pytest.approx([2 * alone[0], alone[1]])


def test_comparison_continues_a_run_that_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(PROJECT / "launch")
    import compare

    (condition, *_), made = compare.CONDITIONS, []
    found = SimpleNamespace(recipe="best.yaml")
    monkeypatch.setattr(fp, "tune", create_autospec(fp.tune, return_value=found))
    monkeypatch.setattr(compare, "chosen", lambda *_: {})
    monkeypatch.setattr(compare, "run", lambda _, __, output: made.append(output.name))
    for rounds, again in ((20, []), (10, ["seed0", "seed1", "seed2", "seed3", "seed4"])):
        for seed in compare.SEEDS:
            folder = tmp_path / condition / "FedAvg" / f"seed{seed}"
            folder.mkdir(parents=True, exist_ok=True)
            done = 20 if seed < 4 else rounds
            (folder / "summary.json").write_text(json.dumps({"rounds": done}))
        compare.make(tmp_path, condition, "FedAvg")
        assert made == again


def test_comparison_chooses_by_all_tuning_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(PROJECT / "launch")
    import compare

    def run(recipe: Path, *, overrides: dict[str, int], output: Path, **_: object) -> None:
        output.mkdir(parents=True)
        rate, rounds = recipe.parts[-3], 20
        if rate == "rate=0.3" and overrides["random_seed"] == 103:  # it diverges
            rounds = 7
        accuracy = {"rate=0.2": 0.94, "rate=0.3": 0.97, "rate=0.4": 0.6}[rate]
        lines = [json.dumps({"test_acc": accuracy})] * rounds
        (output / "metrics.jsonl").write_text("\n".join(lines) + "\n")
        if rounds < 20:
            raise fp.RunError("round 8: no client update to average")

    monkeypatch.setattr(fp, "run", run)
    values = {0.1: 0.9, 0.2: 0.95, 0.3: 0.96, 0.4: 0.955, 0.5: None}
    folders = [f"trials/FedAvg/rate={rate}" for rate in values]
    trials = {"learning_rate": [*values], "value": [*values.values()], "folder": folders}
    found = SimpleNamespace(folder=tmp_path / "study", trials=pd.DataFrame(trials))
    assert compare.chosen(tmp_path, found, ["learning_rate"]) == {"learning_rate": 0.2}
    table = pd.read_csv(tmp_path / "candidates.csv").set_index("learning_rate")["mean_final"]
    assert table.to_dict() == pytest.approx(
        {0.3: (2 * 96 + 2 * 97 + 10) / 5, 0.4: (2 * 95.5 + 3 * 60) / 5, 0.2: (2 * 95 + 3 * 94) / 5}
    )
