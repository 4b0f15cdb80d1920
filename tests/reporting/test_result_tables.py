"""Results by client and by class as tables and figures, from files written by hand."""

import re
from pathlib import Path
from typing import Any

import pytest

import fednnnn_plugin as fp
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.reporting.build import build_report
from fednnnn_plugin.reporting.style import BLACK, VERMILION

ACCURACIES = {"PaperFedAvg": (0.0, 0.5, 1.0, 0.5), "FedNNNN": (0.5, 1.0, 1.0, 1.0)}
CLASSES = "round,class,name,samples,accuracy,train_samples,train_clients,weight\n"


def measured(line: dict[str, Any]) -> None:
    """The worst tenth gets better by 0.2 a round."""
    worst = line["round"] / 5
    line["client_acc"] = {"mean": worst, "std": 0.0, "worst_10": worst, "worst": worst}
    line["class_acc"] = line["client_acc"]


@pytest.fixture
def runs(make_run) -> dict[str, Path]:
    """A run of each method, four clients and two classes, in rounds 1 and 4."""
    found = {}
    for method, accuracies in ACCURACIES.items():
        folder = found[method] = make_run(method, change=measured)
        rows = [
            f"{number},{client},4,{accuracy * number / 4},{'' if client else 0.5}\n"
            for number in (1, 4)
            for client, accuracy in enumerate(accuracies)
        ]
        (folder / "clients.csv").write_text("round,client,samples,accuracy,loss\n" + "".join(rows))
        rows = ["4,0,cat,3,0.25,30,3,0.7\n", "4,1,dog,3,0.75,50,1,0.3\n"]
        (folder / "classes.csv").write_text(CLASSES + "".join(rows))
    make_run("Momentum")  # has none
    return found


def test_tables_are_the_files_with_the_runs_names(runs: dict[str, Path]) -> None:
    folder = runs["FedNNNN"]
    (folder / "clients.csv").open("a").write("5,0,4,1.")  # which a process is just writing
    found = fp.client_results(fp.Run(folder, None))
    assert list(found["accuracy"]) == [0.125, 0.25, 0.25, 0.25, 0.5, 1.0, 1.0, 1.0]
    assert found["loss"].notna().tolist() == [True, False, False, False] * 2
    assert found.iloc[-1][["method", "seed", "round", "client", "samples"]].tolist() == [
        *("FedNNNN", 0, 4, 3, 4)
    ]
    table = fp.read_runs(folder.parent)
    first = fp.client_results(table[table["round"] < 4])
    assert first["round"].unique().tolist() == [1]
    every = fp.client_results(table)
    assert every.groupby("method")["accuracy"].size().to_dict() == {"FedAvg": 8, "FedNNNN": 8}
    classes = fp.class_results(folder)
    assert classes[["class", "name", "weight"]].to_numpy().tolist() == [
        [0, "cat", 0.7],
        [1, "dog", 0.3],
    ]
    with pytest.raises(UserError, match=r"^runs: none has a clients\.csv .*per_client"):
        fp.client_results(*folder.parent.glob("*momentum"))
    (folder / "clients.csv").write_text("")
    with pytest.raises(UserError, match=r"^runs: none has a clients\.csv"):
        fp.client_results(folder)
    (folder / "clients.csv").write_text("round,client\n1,2\n")
    with pytest.raises(UserError, match=r"clients\.csv: cannot be read"):
        fp.client_results(folder)


def test_figures_by_hand(runs: dict[str, Path]) -> None:
    table = fp.read_runs(*runs.values())
    ax = fp.figures.client_quantiles(table)
    at, edge = ax.collections[0].get_paths()[0].vertices.T
    assert (edge[at == 4].min(), edge[at == 4].max()) == pytest.approx((15, 85))  # tenths
    average, nnnn = ax.lines
    assert average.get_xydata().tolist() == [[1, 12.5], [4, 50]]
    assert nnnn.get_ydata().tolist() == [25, 100]
    average, nnnn = fp.figures.client_distribution(table).lines
    assert average.get_xydata().tolist() == [[12.5, 0], [37.5, 50], [62.5, 50], [87.5, 100]]
    assert nnnn.get_ydata().tolist() == [50, 100, 100, 100]
    ax = fp.figures.class_accuracy(table, legend=True)
    assert ax.lines[0].get_xydata().tolist() == [[1, 75], [2, 25]]  # the rarest is the first
    assert [text.get_text() for text in ax.get_xticklabels()] == ["dog", "cat"]
    ax = fp.figures.accuracy(table, column="client_acc.worst_10", scale="linear")
    assert ax.lines[0].get_ydata() == pytest.approx([20, 40, 60, 80])
    with pytest.raises(UserError, match=r"^column: "):
        fp.figures.accuracy(table.drop(columns="client_acc.worst"), column="client_acc.worst")


def test_figures_leave_out_clients_without_an_accuracy(runs: dict[str, Path]) -> None:
    """As those of a regression, beside others."""
    rows = "round,client,samples,accuracy,loss\n4,0,4,,0.5\n"
    (runs["PaperFedAvg"] / "clients.csv").write_text(rows)
    table = fp.read_runs(*runs.values())
    for draw in (fp.figures.client_distribution, fp.figures.client_quantiles):
        ax = draw(table)
        assert [line.get_label() for line in ax.lines] == ["FedNNNN"]
        assert [text.get_text() for text in ax.texts] == ["FedNNNN"]
        with pytest.raises(UserError, match=r"^runs: no client .* has an accuracy"):
            draw(table[table["method"] == "FedAvg"])


@pytest.mark.slow
def test_report_has_them_and_what_reaches_a_target(runs: dict[str, Path], tmp_path: Path) -> None:
    folder = runs["FedNNNN"].parent
    report = build_report([folder], tmp_path / "report", target="worst_10=0.5")
    figures = {path.stem for path in (tmp_path / "report").glob("figures/*/*.svg")}
    assert figures >= {"worst-clients", "client-quantiles", "client-distribution", "class-accuracy"}
    assert "50 % of the worst 10 % of clients" in report.text
    head = next(line for line in report.text.splitlines() if "method" in line)
    assert "final worst 10 % of clients (%)" in head
    assert "final worst class (%)" in head
    rows = [line for line in report.text.splitlines() if " FedAvg " in line]
    assert rows[0].count("80.00 (1)") == 2
    found = fp.summary(fp.read_runs(folder), target="worst_10=0.5").set_index("method")
    assert found["rounds_to_target"].to_dict() == pytest.approx(
        {"FedAvg": 3, "FedNNNN": 3, "Momentum": float("nan")}, nan_ok=True
    )
    (runs["PaperFedAvg"] / "clients.csv").write_text("x\n")
    classes = runs["PaperFedAvg"] / "classes.csv"
    classes.write_text(classes.read_text().replace("0.25", "quarter"))
    warned = build_report([folder], tmp_path / "damaged").warnings
    found = [re.search(r"cl\w+.csv: cannot be read", line) for line in warned]
    assert sorted(each[0] for each in found if each) == [
        *("classes.csv: cannot be read", "clients.csv: cannot be read")
    ]
    assert (tmp_path / "damaged" / "index.html").exists()
    for path in folder.glob("*/cl*.csv"):  # records are kept without these files, too
        path.unlink()
    build_report([folder], tmp_path / "bare")
    left = {path.stem for path in (tmp_path / "bare").glob("figures/*/*.svg")}
    assert figures - left == {"client-quantiles", "client-distribution", "class-accuracy"}
    for target in ("worst_10=1.5", "worst_11=0.5", "worst_10=", "x", 95, 0.0, float("nan")):
        with pytest.raises(UserError, match=r"^target: "):
            fp.summary(fp.read_runs(folder), target=target)


def test_agreement_of_a_layer(runs: dict[str, Path]) -> None:
    table = fp.read_runs(runs["FedNNNN"])
    ax = fp.figures.agreement(table, layer="fc1")
    ratio = table["layers.fc1.mean_update_norm"] / table["layers.fc1.mean_client_norm"]
    assert ax.lines[0].get_ydata() == pytest.approx(ratio.to_numpy())
    with pytest.raises(UserError, match=r"^layer: 'fc9'"):
        fp.figures.agreement(table, layer="fc9")


def test_label_names_a_run_in_tables_and_figures(runs: dict[str, Path]) -> None:
    """Of one method two are told apart by it; the colours stay the method's."""
    for name, label in (("FedNNNN", "ours"), ("PaperFedAvg", "theirs")):
        with (runs[name] / "recipe.yaml").open("a") as file:
            file.write(f"tracking_args: {{label: {label}}}\n")
    table = fp.read_runs(*runs.values())
    assert set(table["method"]) == {"ours", "theirs"}
    assert list(fp.summary(table)["label"]) == ["ours", "theirs"]
    colors = {line.get_label(): line.get_color() for line in fp.figures.accuracy(table).lines}
    assert colors == {"ours": VERMILION, "theirs": BLACK}
    (line,) = fp.figures.accuracy(fp.read_runs(runs["FedNNNN"]), palette={"ours": "red"}).lines
    assert line.get_color() == "red"
