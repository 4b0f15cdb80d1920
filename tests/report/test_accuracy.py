import csv
import json
from pathlib import Path
from statistics import mean, stdev

import pytest

from fednnnn_plugin.report import paper
from fednnnn_plugin.report.accuracy import accuracy_csv, accuracy_rows, accuracy_table
from fednnnn_plugin.report.groups import group_runs
from fednnnn_plugin.report.runs import read_runs
from fednnnn_plugin.report.speed import RoundsRow, rounds_csv, rounds_rows, rounds_table


def accuracies(folder: Path, values: list[float | None]) -> Path:
    """Give a run these test accuracies."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line, value in zip(lines, values, strict=True):
        line["test_acc"] = value
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    (folder / "summary.json").unlink(missing_ok=True)
    return folder


@pytest.fixture
def mnist(make_run) -> list[Path]:
    """Two seeds of FedNNNN and one of FedAvg on MNIST, non-IID and balanced, three rounds."""

    def run(method: str, seed: int, values: list[float | None]) -> Path:
        folder = make_run(method, dataset="mnist", clients=100, rounds=3, seed=seed)
        return accuracies(folder, values)

    return [
        run("PaperFedAvg", 0, [0.5, 0.9, 0.8]),
        run("FedNNNN", 0, [0.6, 0.95, 0.9]),
        run("FedNNNN", 1, [0.7, 0.93, 0.94]),
    ]


def rows_of(folders: list[Path]):
    return accuracy_rows(group_runs(read_runs(folders)[0])[0])


def test_by_hand(mnist: list[Path]) -> None:
    fedavg, fednnnn = rows_of(mnist)
    assert (fedavg.best.mean, fedavg.best.deviation) == (0.9, None)
    assert fedavg.final.mean == 0.8
    # Best of the two seeds 0.95 and 0.94, last 0.90 and 0.94; their deviations by the divisor 1.
    assert fednnnn.best.mean == pytest.approx(0.945)
    assert fednnnn.best.deviation == pytest.approx(0.005 * 2**0.5)
    assert fednnnn.final.mean == pytest.approx(0.92)
    assert fednnnn.final.deviation == pytest.approx(0.02 * 2**0.5)
    assert (fedavg.paper, fednnnn.paper) == (98.2, 99.1)
    assert fednnnn.against_paper(fednnnn.best) == pytest.approx(94.5 - 99.1)


def test_terminal(mnist: list[Path]) -> None:
    assert accuracy_table(rows_of(mnist)).text().split("\n")[:6] == [
        "Accuracy of the evaluation model on the test set (%)",
        "",
        "data set  condition   method    seeds  rounds          best         final  paper"
        "  best − paper  final − paper",
        "────────  ──────────  ────────  ─────  ──────  ────────────  ────────────  ─────"
        "  ────────────  ─────────────",
        "MNIST     non-IID, B  FedAvg*       1       3         90.00         80.00   98.2"
        "          −8.2          −18.2",
        "                      FedNNNN*      2       3  94.50 ± 0.71  92.00 ± 2.83   99.1"
        "          −4.6           −7.1",
    ]


def test_what_differs_from_the_paper_is_said(mnist: list[Path]) -> None:
    *_, last = accuracy_table(rows_of(mnist)).notes
    assert last == ("* not the paper's settings, whose values are in brackets: comm_round 3 (100).")


def test_the_papers_settings_get_no_star(make_run) -> None:
    folder = make_run("FedNNNN", dataset="cifar10", clients=100, rounds=250, weight_decay=5e-4)
    (row,) = rows_of([folder])
    assert row.unlike_paper == ""
    assert row.paper == 76.7


def test_an_unfinished_run_says_how_far_it_is(make_run) -> None:
    folder = make_run("FedNNNN", dataset="mnist", clients=100, rounds=100, done=40, finished=False)
    (row,) = rows_of([folder])
    assert row.unlike_paper == "40 rounds so far (100)"
    assert accuracy_table([row]).rows[0][4].text == "40 of 100"


def test_digits_have_no_column_of_the_papers(two_methods: list[Path]) -> None:
    table = accuracy_table(rows_of(two_methods))
    assert table.columns == (
        *("data set", "condition", "method", "seeds", "rounds", "best", "final"),
    )
    assert [row[2].text for row in table.rows] == ["FedAvg", "FedNNNN"]


def test_best_of_a_condition_is_strong(mnist: list[Path]) -> None:
    table = accuracy_table(rows_of(mnist))
    assert [[cell.strong for cell in row[5:7]] for row in table.rows] == [
        [False, False],
        [True, True],
    ]


def test_csv_equals_metrics(two_methods: list[Path]) -> None:
    found = list(csv.DictReader(accuracy_csv(rows_of(two_methods)).splitlines()))
    for row, folders in zip(found, (two_methods[:2], two_methods[2:]), strict=True):
        recorded = [
            [json.loads(line)["test_acc"] for line in (f / "metrics.jsonl").open()] for f in folders
        ]
        best, final = [max(run) for run in recorded], [run[-1] for run in recorded]
        for values, name in ((best, "best"), (final, "final")):
            assert float(row[f"{name}_mean"]) == pytest.approx(mean(values), rel=1e-15)
            assert float(row[f"{name}_sd"]) == pytest.approx(stdev(values), rel=1e-12)


def test_never_tested(make_run) -> None:
    folder = accuracies(make_run("FedNNNN", rounds=2), [None, None])
    (row,) = rows_of([folder])
    assert (row.best, row.final) == (None, None)
    assert [cell.text for cell in accuracy_table([row]).rows[0][5:7]] == ["–", "–"]


def test_the_papers_table() -> None:
    assert len(paper.ACCURACY) == 40
    # Spot checks against tab:accuracy, one from each row and each column.
    for key, figure in {
        ("mnist", "IID", "B", "FedAvg"): 99.0,
        ("cifar10", "IID", "B", "FedNNNN"): 84.7,
        ("mnist", "non-IID", "B", "FedProx"): 98.1,
        ("cifar10", "non-IID", "B", "Momentum"): 74.3,
        ("mnist", "IID", "UB", "Norm-Norm"): 99.2,
        ("cifar10", "IID", "UB", "Momentum"): 84.2,
        ("mnist", "non-IID", "UB", "FedProx"): 87.9,
        ("cifar10", "non-IID", "UB", "FedNNNN"): 61.9,
    }.items():
        assert paper.ACCURACY[key] == figure
    # The paper's claims: best or second best everywhere, 5.4 points over FedAvg at the most
    # among the conditions where FedAvg gets above 60 %.
    gains = {
        key[:3]: figure - paper.ACCURACY[(*key[:3], "FedAvg")]
        for key, figure in paper.ACCURACY.items()
        if key[3] == "FedNNNN"
    }
    assert round(gains["mnist", "non-IID", "UB"], 1) == 5.4
    assert all(gain >= 0 for gain in gains.values())


def speeds(make_run, target: float, **curves: list[list[float | None]]) -> dict[str, RoundsRow]:
    folders = [
        accuracies(make_run(method, rounds=len(values), seed=seed), values)
        for method, seeds in curves.items()
        for seed, values in enumerate(seeds)
    ]
    rows = rounds_rows(group_runs(read_runs(folders)[0])[0], target)
    return {row.group.method: row for row in rows}


def test_rounds_by_hand(make_run) -> None:
    rows = speeds(
        make_run,
        0.9,
        PaperFedAvg=[[0.1, 0.5, None, 0.8, 0.85, 0.9], [0.1, 0.5, 0.6, 0.92, 0.8, 0.8]],
        FedNNNN=[[0.5, 0.95, 0.8, 0.9, 0.9, 0.9], [0.5, None, 0.91, 0.9, 0.9, 0.9]],
        Momentum=[[0.5, 0.6, 0.95, 0.9, 0.9, 0.9], [0.5, 0.6, 0.7, 0.8, 0.8, 0.8]],
        NormNorm=[[0.5] * 6],
    )
    assert rows["FedAvg"].reached == (6, 4)
    assert rows["FedNNNN"].reached == (2, 3)
    assert rows["FedAvg"].speed_up == 1.0
    assert rows["FedNNNN"].speed_up == 2.0
    # One seed of Momentum and the one of Norm-Norm never got there: no mean, no speed-up.
    assert (rows["Momentum"].reached, rows["Momentum"].tried) == ((3,), 6)
    assert rows["Momentum"].speed_up is None
    table = rounds_table(list(rows.values()), 0.9)
    assert table.title == "Rounds to a test accuracy of 90 %"
    assert [[cell.text for cell in row[2:]] for row in table.rows] == [
        ["FedAvg", "5.0 ± 1.4", "1.0×"],
        ["Norm-Norm", ">6", "–"],
        ["Momentum", "3 (1 of 2 seeds)", "–"],
        ["FedNNNN", "2.5 ± 0.7", "2.0×"],
    ]
    found = list(csv.DictReader(rounds_csv(list(rows.values()), 0.9).splitlines()))
    assert [row["rounds_mean"] for row in found] == ["5.0", "", "3.0", "2.5"]
    assert [row["seeds_reached"] for row in found] == ["2", "0", "1", "2"]


def test_speed_up_over_a_fedavg_that_never_got_there_is_a_bound(make_run) -> None:
    rows = speeds(make_run, 0.9, PaperFedAvg=[[0.5] * 6], FedNNNN=[[0.5, 0.95, *[0.9] * 4]])
    assert (rows["FedNNNN"].speed_up, rows["FedNNNN"].at_least) == (3.0, True)
    table = rounds_table(list(rows.values()), 0.9)
    assert [row[-1].text for row in table.rows] == ["–", ">3.0×"]
