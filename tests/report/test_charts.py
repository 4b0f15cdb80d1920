import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest

from fednnnn_plugin.report.build import build_report
from fednnnn_plugin.report.charts import Chart, charts
from fednnnn_plugin.report.curves import combined
from fednnnn_plugin.report.groups import conditions, group_runs, single_clients
from fednnnn_plugin.report.layers import shown_layers
from fednnnn_plugin.report.runs import read_runs
from fednnnn_plugin.report.style import line_styles


def charts_of(folders: list[Path], layers: tuple[str, ...] = ()) -> dict[str, Chart]:
    groups, _ = group_runs(read_runs(folders)[0])
    condition, members = next(iter(conditions(groups).items()))
    references = single_clients(groups, condition.dataset)
    return {c.name: c for c in charts(condition, members, references, layers)}


def metrics(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def recorded(line: dict, name: str, module: str | None) -> float:
    places = {"client_norm_min": 0, "client_norm_median": 1, "client_norm_max": 2}
    if module:
        return line["layers"][module][name]
    return line["client_norms"][places[name]] if name in places else line[name]


def test_every_csv_equals_metrics(two_methods: list[Path], tmp_path: Path) -> None:
    build_report(two_methods, tmp_path / "out")
    lines = {
        (folder.name, line["round"]): line for folder in two_methods for line in metrics(folder)
    }
    files = sorted((tmp_path / "out/figures/digits-non-iid-b").glob("*.csv"))
    assert [file.stem for file in files] == [
        *("accuracy", "agreement", "client-norms", "integrated-norm"),
        *("norms-conv2", "norms-fc2", "norms", "served"),
    ]
    for file in files:
        rows = list(csv.DictReader(file.open()))
        assert len(rows) == len(lines)
        for row in rows:
            line = lines[row.pop("run"), int(row.pop("round"))]
            method, module = row.pop("method"), row.pop("module", None)
            assert method in ("FedAvg", "FedNNNN")
            assert row.pop("seed") in ("0", "1")
            if ratio := row.pop("ratio", None):
                assert float(ratio) == line["mean_update_norm"] / line["mean_client_norm"]
            assert row
            for name, value in row.items():
                assert float(value) == recorded(line, name, module)


def test_curves_are_the_mean_over_seeds(two_methods: list[Path]) -> None:
    groups, _ = group_runs(read_runs(two_methods[:2])[0])
    looks = list(zip(groups, line_styles([("FedAvg", "")]), strict=True))
    (series,) = combined(looks, "mean_client_norm")
    values = np.array(
        [[line["mean_client_norm"] for line in metrics(folder)] for folder in two_methods[:2]]
    )
    np.testing.assert_allclose(series.y, values.mean(axis=0), rtol=1e-15)
    np.testing.assert_allclose(series.high - series.y, values.std(axis=0, ddof=1), rtol=1e-12)
    np.testing.assert_allclose(series.y - series.low, values.std(axis=0, ddof=1), rtol=1e-12)
    assert series.x.tolist() == list(range(1, 31))


def test_a_curve_joins_the_tested_rounds(make_run) -> None:
    folder = make_run("FedNNNN", rounds=7)
    lines = metrics(folder)
    for line in lines:
        if (line["round"] - 1) % 3:
            line["test_acc"] = None
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    chart = charts_of([folder])["accuracy"]
    assert [row[3] for row in chart.rows] == [1, 4, 7]


@pytest.mark.parametrize(
    ("dataset", "layers"),
    [("cifar10", ("fc3", "conv32")), ("mnist", ("fc2", "conv2")), ("digits", ("fc2", "conv2"))],
)
def test_layers_that_the_paper_shows(make_run, dataset: str, layers: tuple[str, ...]) -> None:
    runs, _ = read_runs([make_run("FedNNNN", dataset=dataset, rounds=3)])
    assert shown_layers(runs) == layers


def test_layers_asked_for(make_run) -> None:
    folder = make_run("FedNNNN", dataset="cifar10", rounds=3)
    found = charts_of([folder], ("bn11", "none"))
    assert [name for name in found if name.startswith("norms")] == ["norms", "norms-bn11"]


def test_references_of_the_ratio(make_run) -> None:
    chart = charts_of([make_run("FedNNNN", clients=25, rounds=5)])["agreement"]
    texts = [item.text for item in chart.canvas.items if hasattr(item, "text")]
    assert "1: clients agree" in texts
    assert "1/√25: orthogonal" in texts
    # The lines lie where the logarithmic axis has 1 and 0.2, relative to its ticks 0.5 and 1.
    heights = {
        item.text: item.y
        for item in chart.canvas.items
        if hasattr(item, "text") and item.ha == "right" and item.va == "center"
    }
    dotted = sorted(
        item.points[0, 1]
        for item in chart.canvas.items
        if hasattr(item, "points")
        and item.dash == (1.0, 2.0)
        and np.ptp(item.points[:, 0]) > 100  # not the samples in the key
    )
    decade = (heights["1"] - heights["0.5"]) / math.log10(2.0)
    assert dotted[1] == pytest.approx(heights["1"])
    assert dotted[0] == pytest.approx(heights["1"] - decade * math.log10(5.0))


def test_single_client_is_the_reference(make_run) -> None:
    folders = [
        make_run("FedNNNN", dataset="mnist", clients=10, rounds=5),
        make_run("PaperFedAvg", dataset="mnist", clients=1, rounds=5, name="single"),
    ]
    found = charts_of(folders)
    for name in ("norms", "integrated-norm"):
        texts = [item.text for item in found[name].canvas.items if hasattr(item, "text")]
        assert "single client" in texts
        assert {row[0] for row in found[name].rows} == {folders[0].name, "single"}
    groups, _ = group_runs(read_runs(folders)[0])
    *_, (condition, members) = conditions(groups).items()
    own = [chart.name for chart in charts(condition, members, members, ())]
    assert own == ["accuracy", "integrated-norm", "norms"]


def test_served_only_where_recorded(make_run) -> None:
    folder = make_run("FedNNNN", rounds=4)
    assert "served" in charts_of([folder])
    lines = [line | {"served_test_acc": None} for line in metrics(folder)]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    assert "served" not in charts_of([folder])


def test_axes_are_labelled(two_methods: list[Path]) -> None:
    labels = {
        "accuracy": "test accuracy (%)",
        "agreement": "N/E",
        "norms": "L2 norm",
        "norms-fc2": "L2 norm",
        "norms-conv2": "L2 norm",
        "client-norms": "client update (L2)",
        "integrated-norm": "sum of moves (L2)",
        "served": "test accuracy (%)",
    }
    for name, chart in charts_of(two_methods).items():
        texts = [item for item in chart.canvas.items if hasattr(item, "text")]
        assert "round" in [item.text for item in texts]
        assert labels.pop(name) in [item.text for item in texts if item.vertical]
    assert labels == {}


def test_alt_text_tells_the_last_values(make_run) -> None:
    folder = make_run("FedNNNN", rounds=4)
    last = metrics(folder)[-1]["test_acc"] * 100
    assert charts_of([folder])["accuracy"].alt == (
        f"Line chart of test accuracy in per cent by round. Last values. FedNNNN {last:.3g}."
    )


def test_comparators_look_like_no_other_method_and_keep_their_look() -> None:
    methods = ["FedAvg", "FedProx", "Norm-Norm", "Momentum", "FedNNNN", "FedExP", "FedAdam"]
    styles = line_styles([(method, "") for method in [*methods, "FedYogi", "theirs", "another"]])
    assert len({(look.color, look.dash) for look in styles}) == len(styles)
    assert line_styles([("FedYogi", "")]) == [styles[7]]


def test_methods_differ_in_colour_and_in_dash() -> None:
    methods = ["FedAvg", "FedProx", "Norm-Norm", "Momentum", "FedNNNN", "theirs", "another"]
    styles = line_styles([(method, "") for method in methods])
    assert len({look.color for look in styles}) == len(methods)
    assert len({look.dash for look in styles[:5]}) == 5
    # The same method looks alike whatever else is shown; its variants differ in their dashes.
    assert line_styles([("FedNNNN", "")]) == [styles[4]]
    variants = line_styles([("FedNNNN", f"β {beta}") for beta in (0.5, 0.6, 0.7)])
    assert {look.color for look in variants} == {styles[4].color}
    assert len({look.dash for look in variants}) == 3
