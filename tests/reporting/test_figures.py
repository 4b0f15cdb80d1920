"""What the figures draw, on any Axes."""

import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.font_manager import get_font_names

import fednnnn_plugin as fp
from fednnnn_plugin.quantities import NORMS, ClientNorms
from fednnnn_plugin.reporting.charts import Chart, condition_charts
from fednnnn_plugin.reporting.conditions import arrange, references
from fednnnn_plugin.reporting.runs import SECONDS
from fednnnn_plugin.reporting.style import UNNAMED, drawn

from .conftest import bare, curve, maker

fig = fp.figures


def lines(ax: Axes) -> dict[str, np.ndarray]:
    found = {line.get_label(): np.asarray(line.get_ydata()) for line in ax.lines}
    return {name: y for name, y in found.items() if not UNNAMED.fullmatch(name) and ":" not in name}


def names(ax: Axes) -> set[str]:
    return {text.get_text() for text in ax.texts}


def charts(runs: pd.DataFrame) -> Iterator[Chart]:
    """The first one is of the accuracy; all together take a second."""
    arranged = arrange(runs)
    return condition_charts(arranged, arranged.iloc[:0], (), [])


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> pd.DataFrame:
    make_run = maker(tmp_path_factory.mktemp("runs"))
    for method in ("PaperFedAvg", "FedNNNN"):
        for seed in (0, 1):
            folder = make_run(method, seed=seed)
    return fp.read_runs(folder.parent)


@pytest.mark.parametrize("draw", [fig.accuracy, fig.norms, fig.integrated_norm])
def test_figures_draw_on_given_or_new_axes(runs: pd.DataFrame, draw) -> None:
    _, ax = plt.subplots()
    for _ in range(2):  # a line that is drawn twice is named once
        assert draw(runs, ax) is ax
    assert set(lines(ax)) == {"FedAvg", "FedNNNN"}
    assert names(ax) >= {"FedAvg", "FedNNNN"}
    assert len(names(ax)) == len(ax.texts)
    assert all((ax.get_xlabel(), ax.get_ylabel()))
    other = draw(runs, names=False, legend=True)
    assert other is not ax
    assert not names(other)
    assert other.get_legend() is not None


def test_figures_refuse_unknown_names(runs: pd.DataFrame) -> None:
    for draw, word, given, nearest in (
        (fig.accuracy, "column", "tst_acc", "test_acc"),
        (fig.accuracy, "scale", "eror", "error"),
        (fig.norms, "layer", "fc99", "fc1"),
        (fig.norms, "norm", "mean_update", "mean_update_norm"),
        (fig.metric, "name", "f1", "none"),
    ):
        with pytest.raises(fp.UserError, match=f"^{word}: .*{nearest}[^\n]*$"):
            draw(runs, **{word: given})
    for wrong, named in (
        ({"ax": plt.subplots(2)[1]}, "ax: is of .*ndarray"),
        ({"palette": "tab10"}, "palette: 'tab10'"),
    ):
        with pytest.raises(fp.UserError, match=f"^{named}"):
            fig.accuracy(runs, **wrong)
    for wrong in ("runs", runs.drop(columns="method"), runs[runs["method"] == "x"]):
        with pytest.raises(fp.UserError, match=r"^runs: "):
            fig.accuracy(wrong)
    with pytest.raises(fp.UserError, match=r"^runs: .*method"):
        fp.summary(runs.drop(columns="method"))
    with pytest.raises(TypeError, match=r"^accuracy\(\) got an unexpected .*'foo'$"):
        fig.accuracy(runs, foo=1)
    with pytest.raises(TypeError, match=r"^metric\(\) missing a required .*'name'$"):
        fig.metric(runs)


def test_accuracy_of_seeds_by_hand(make_run) -> None:
    """Round 2 was not tested with seed 1, which ended after round 4: seed 0 continues alone."""
    make_run("FedNNNN", change=curve(0.25, 0.5, 0.5, 0.5, 0.75), comm_round=5)
    shorter = make_run("FedNNNN", seed=1, change=curve(0.5, None, 0.5, 0.75), comm_round=5, done=4)
    runs = fp.read_runs(shorter.parent)
    ax = fig.accuracy(runs)
    (line,), (band,) = ax.lines, ax.collections
    assert list(line.get_xdata()) == [1, 3, 4, 5]
    assert list(line.get_ydata()) == [37.5, 50.0, 62.5, 75.0]
    at, edge = band.get_paths()[0].vertices.T
    deviation = 12.5 * 2**0.5
    assert at.max() == 4
    assert (edge[at == 1].min(), edge[at == 1].max()) == pytest.approx(
        (37.5 - deviation, 37.5 + deviation)
    )
    one = runs[runs["seed"] == 0]
    for draw, column in (
        (fig.loss, "test_loss"),
        (fig.integrated_norm, "integrated_norm"),
        (fig.norms, "mean_update_norm"),
    ):
        assert draw(one).lines[0].get_ydata() == pytest.approx(one[column].to_numpy())
    chart = next(charts(runs))
    assert "FedNNNN 75" in chart.alt
    assert "continue alone" in chart.caption
    assert "continue alone" not in next(charts(runs[runs["round"] < 5])).caption


def test_accuracy_by_seconds_never_goes_back(runs: pd.DataFrame, make_run) -> None:
    make_run("FedNNNN", seed=0, comm_round=6, done=3)
    both = fp.read_runs(make_run("FedNNNN", seed=1, comm_round=6).parent)
    both[SECONDS] = 0.0
    ax = fig.accuracy_by_seconds(both.assign(**{"seconds.train": 10.0 - 8.0 * both["seed"]}))
    assert list(ax.lines[0].get_xdata()) == [6.0, 12.0, 18.0]
    assert ax.get_xlabel() == "seconds"
    norms = both["seed"].map({0: (1.0, 2.0, 3.0), 1: (0.5, 4.0, 9.0)}).tolist()
    ax = fig.client_spread(both.assign(**pd.DataFrame(norms, columns=[*ClientNorms._fields])))
    edges = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert (edges.min(), edges.max()) == (0.5, 9.0)
    assert list(lines(ax)["FedNNNN"]) == [3.0] * 3 + [4.0] * 3
    assert fig.accuracy_by_seconds(runs.assign(**{"seconds.train": 7200.0})).get_xlabel() == "hours"
    assert not fig.accuracy_by_seconds(runs.assign(**dict.fromkeys(SECONDS, 0.0))).lines


def test_agreement_marks_orthogonal_updates(runs: pd.DataFrame) -> None:
    """1/√m holds for updates of one length only, so not under a power law."""
    ax = fig.agreement(runs)
    marks = [line for line in ax.lines if "orthogonal" in line.get_label()]
    assert [set(mark.get_ydata()) for mark in marks] == [{0.1}, {0.1}]  # 100 clients
    assert names(ax) == {"FedAvg", "FedNNNN", "1: clients agree", "dotted: orthogonal"}
    of_layer = {line.get_label() for line in fig.agreement(runs, layer="fc2").lines}
    assert "dotted: orthogonal" in of_layer
    ours = runs["method"] == "FedNNNN"
    ax = fig.agreement(runs[ours].assign(client_weighting="samples"))
    assert names(ax) == {"FedNNNN", "1: clients agree"}
    uneven_runs = runs[ours].assign(mean_client_norm=4.0, orthogonal_norm=3.0)
    ax = fig.agreement(uneven_runs.assign(client_weighting="samples"))
    (mark,) = (line for line in ax.lines if line.get_label() == "dotted: orthogonal")
    assert list(mark.get_ydata()) == [0.75] * 4
    assert names(ax) == {"FedNNNN", "1: clients agree", "dotted: orthogonal"}


@pytest.mark.filterwarnings("error::UserWarning", "error::RuntimeWarning")
@pytest.mark.parametrize("values", [(0.0, 0.0), (1e-300, 1e99)])
def test_norms_axis_takes_any_norms(runs: pd.DataFrame, values: tuple) -> None:
    column = runs["round"].map(lambda number: values[number > 1])
    assert drawn(fig.norms(runs.assign(mean_update_norm=column)), "svg")


def test_error_axis_separates_accuracies_near_100(runs: pd.DataFrame) -> None:
    reached = runs.assign(test_acc=runs["round"].map({1: 0.9, 2: 0.99, 3: 0.999, 4: 1.0}))
    ax = fig.accuracy(reached)
    at = ax.transData.transform([(1, value) for value in (90.0, 99.0, 99.9)])[:, 1]
    assert at[1] - at[0] == pytest.approx(at[2] - at[1])
    assert {90.0, 99.0, 99.9} <= set(ax.get_yticks())
    assert np.isfinite(ax.transData.transform((4, 100.0))).all()
    assert "error" in ax.get_ylabel()
    assert "error" not in fig.accuracy(reached, scale="linear").get_ylabel()
    assert "error" in next(charts(reached)).caption


@pytest.mark.slow
def test_layers_metrics_and_served_model_are_drawn(make_run) -> None:
    own = fp.read_runs(make_run("FedNNNN"))
    runs = own.assign(**{"test_metrics.mse": -own["round"], "served_test_acc": 0.125})
    runs["served_test_metrics.mse"] = 0.0  # of which there is no figure
    layer = lines(fig.norms(runs, layer="fc2", norm="mean_client_norm"))["FedNNNN"]
    assert layer == pytest.approx(runs["layers.fc2.mean_client_norm"].to_numpy())
    of_no_module = runs.assign(**{"layers..mean_update_norm": 7.0})
    assert set(lines(fig.norms(of_no_module, layer=""))["FedNNNN"]) == {7.0}
    assert list(lines(fig.metric(runs, name="mse"))["FedNNNN"]) == [-1, -2, -3, -4]
    of_another_model = {f"layers.fc9.{norm}": float("nan") for norm in NORMS}
    every = list(charts(runs.assign(**of_another_model)))
    found = {chart.name: chart for chart in every}
    assert len(found) == len(every)
    assert {"norms-fc2", "norms-conv2", "metric-mse"} <= found.keys()
    panels = found["served"].ax.figure.axes
    titled = {ax.get_title(loc="left"): lines(ax)["FedNNNN"] for ax in panels}
    assert set(titled["served model"]) == {12.5}
    assert titled["evaluated model"][-1] > 12.5
    assert "served model FedNNNN 12.5" in found["served"].alt


def test_variants_of_a_method_have_shades(make_run) -> None:
    """Of tables that were read apart, too: settings that one lacks stand behind the numbers."""
    betas = (0.5, 0.8, 1.1)
    parts = [fp.read_runs(make_run("PaperFedAvg"))]
    parts += [fp.read_runs(make_run("FedNNNN", beta=beta)) for beta in betas]
    ax = fig.accuracy(pd.concat(parts))
    assert names(ax) == set(lines(ax)) == {"FedAvg", *(f"FedNNNN (β {beta:g})" for beta in betas)}
    shades = [line.get_alpha() for line in ax.lines if line.get_label() != "FedAvg"]
    assert shades == sorted(set(shades))
    with pytest.warns(UserWarning, match="only that one counts"):
        fig.accuracy(pd.concat([parts[0], parts[0].assign(run="again", folder="copy")]))


def test_hue_names_what_tells_lines_apart(make_run) -> None:
    """A line is the mean over all that has its value, whatever else differs."""
    for seed, (beta, rate) in enumerate(((0.5, 0.1), (0.5, 0.2), (0.8, 0.1))):
        how = {"beta": beta, "learning_rate": rate, "comm_round": 1}
        make_run("FedNNNN", seed=seed, change=curve(0.2 * seed), **how)
    runs = fp.read_runs(make_run("FedNNNN", comm_round=1, seed=3, beta=0.8).parent)
    first = runs[runs["round"] == 1].assign(group=["a", "b", "b", "b"])
    ax = fig.accuracy(first, hue="beta")
    assert set(lines(ax)) == {"β 0.5", "β 0.8"} == names(ax)
    assert lines(ax)["β 0.5"] == pytest.approx([10.0])
    assert set(lines(fig.accuracy(first, hue=["beta", "learning_rate"]))) == {
        *("β 0.5, η 0.1", "β 0.5, η 0.2", "β 0.8, η 0.1", "β 0.8, η 0.05")
    }
    assert set(lines(fig.accuracy(first, hue="group"))) == {"group a", "group b"}
    counts = first.assign(group=[8, 2, 4, 16])
    assert [*lines(fig.accuracy(counts, hue="group"))] == [f"group {n}" for n in (2, 4, 8, 16)]
    lists = first.assign(group=[["a"], ["b"], ["b"], ["b"]])
    assert len(lines(fig.accuracy(lists, hue=pd.Index(["group"])))) == 2
    assert set(lines(fig.accuracy(first, hue="condition"))) == {"non-IID, B"}
    rows = fp.summary(first, hue="method").to_dict("records")
    assert [(row["label"], row["seeds"]) for row in rows] == [("FedNNNN", 4)]
    with pytest.raises(fp.UserError, match=r"^hue: 'bta'.*beta"):
        fig.loss(first, hue="bta")


def test_figures_are_let_go(runs: pd.DataFrame) -> None:
    ax = fig.agreement(runs)
    kept = weakref.ref(ax)
    plt.close(ax.figure)
    del ax
    gc.collect()
    assert kept() is None


HOSTILE = """
import matplotlib, sys
matplotlib.use("Agg")
import fednnnn_plugin as fp
from fednnnn_plugin.reporting.build import build_report
from pathlib import Path
runs = fp.read_runs(sys.argv[1])
fp.figures.partition([[1, 2], [3, 4]]).figure.savefig("split.png")
build_report([Path(sys.argv[1])], Path("report"), formats="png")
"""


@pytest.mark.slow
def test_figures_are_of_matplotlibs_defaults(make_run, tmp_path: Path) -> None:
    """``./matplotlibrc`` would have LaTeX run with a preamble of whoever wrote it."""
    folder, found = make_run("FedNNNN", change=bare), {}
    latex = tmp_path / "bin" / "latex"
    latex.parent.mkdir()
    latex.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    latex.chmod(0o755)
    path = f"{latex.parent}:{os.environ['PATH']}"
    rc = "text.usetex: True\ntext.latex.preamble: \\immediate\nlines.linewidth: 9\nfont.size: 30\n"
    for name, content in (("plain", ""), ("hostile", rc)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "matplotlibrc").write_text(content)
        command = [sys.executable, "-c", HOSTILE, str(folder)]
        where = {"cwd": tmp_path / name, "env": os.environ | {"PATH": path}}
        subprocess.run(command, check=True, **where)
        drawings = (tmp_path / name / "report" / "figures").rglob("*.png")
        found[name] = {file.name: file.read_bytes() for file in drawings}
    assert "accuracy.png" in found["plain"]
    assert found["plain"] == found["hostile"]
    assert not (tmp_path / "ran").exists()


def test_names_of_lines_are_readable_in_a_programs_style(runs: pd.DataFrame) -> None:
    with plt.style.context("dark_background"):
        ax = fp.figures.accuracy(runs, ax=plt.subplots()[1])
    names = [text.get_color() for text in ax.texts if text.get_label() == "_name"]
    assert set(names) == {"white"}


def test_caption_names_the_tested_model(make_run) -> None:
    """A run that an earlier version began does not say it of its first rounds."""
    make_run("PaperFedAvg", change=bare)
    runs = fp.read_runs(make_run("FedNNNN", change=bare).parent)
    ours, later = runs["method"] == "FedNNNN", runs["round"] > 1
    for of_ours, said in (
        ("average", "Tested: the plain average of the clients' models."),
        ("", "models (FedAvg); a model that the records do not name (FedNNNN)."),
    ):
        recorded = pd.Series("average", runs.index).mask(ours, of_ours).where(later, "")
        assert said in next(charts(runs.assign(evaluated=recorded))).caption


@pytest.mark.slow
def test_single_client_is_a_reference(make_run) -> None:
    make_run("FedNNNN")
    folder = make_run("PaperFedAvg", client_num_in_total=1, client_num_per_round=1)
    both = arrange(fp.read_runs(folder.parent))
    alone = both["condition"] == "single client"
    found = references(both, both[~alone])
    assert found["run"].unique() == [folder.name]
    drawn_on = {c.name: lines(c.ax) for c in condition_charts(both[~alone], found, ["fc1"], [])}
    assert "single client" in drawn_on["integrated-norm"]
    assert "single client" not in drawn_on["accuracy"]
    other = both.assign(model=both["model"].where(~alone, "resnet18"))
    assert references(other, both[~alone]).empty


def test_lines_of_one_name_are_of_one_condition(make_run) -> None:
    alone = {"client_num_in_total": 1, "client_num_per_round": 1}
    for dataset in ("digits", "mnist"):
        folder = make_run("PaperFedAvg", dataset=dataset, **alone)
    both = fp.read_runs(folder.parent)
    names = {"single client, MNIST single client", "single client, digits single client"}
    assert set(lines(fp.figures.accuracy(both))) == names
    make_run("PaperFedAvg")
    every = fp.read_runs(folder.parent)
    assert len(lines(fp.figures.norms(every[every["dataset"] == "digits"], hue="method"))) == 2


@pytest.mark.slow
def test_figures_draw_names_in_any_script(make_run) -> None:
    label = "_规则方法_$x^2 β 0.0005"  # digits in a name stay, too
    runs = fp.read_runs(make_run(f"my:{label}", change=bare))
    drawing = drawn(fig.accuracy(runs), "svg")
    assert drawing == drawn(fig.accuracy(runs), "svg")
    assert label in drawing.decode()
    assert label in next(charts(runs)).alt
    if any("CJK" in name for name in get_font_names()):
        assert any("CJK" in name for name in fig.STYLE["font.family"])
