"""What the figures draw, on any Axes."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.font_manager import get_font_names

import fednnnn_plugin as fp
from fednnnn_plugin.report.charts import Chart, condition_charts
from fednnnn_plugin.report.conditions import arrange, references
from fednnnn_plugin.report.runs import SECONDS
from fednnnn_plugin.report.style import drawn

from .conftest import maker

fig = fp.figures


def lines(ax: Axes) -> dict[str, np.ndarray]:
    found = {line.get_label(): np.asarray(line.get_ydata()) for line in ax.lines}
    return {name: y for name, y in found.items() if not name.startswith("_")}


def names(ax: Axes) -> set[str]:
    return {text.get_text() for text in ax.texts}


def chart(runs: pd.DataFrame, name: str = "accuracy") -> Chart:
    arranged = arrange(runs)
    return next(c for c in condition_charts(arranged, arranged.iloc[:0], ()) if c.name == name)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> pd.DataFrame:
    make_run = maker(tmp_path_factory.mktemp("runs"))
    for method in ("PaperFedAvg", "FedNNNN"):
        for seed in (0, 1):
            folder = make_run(method, seed=seed)
    return fp.read_runs(folder.parent)


LINES = "accuracy accuracy_by_seconds loss norms agreement integrated_norm client_spread"


@pytest.mark.parametrize("name", LINES.split())
def test_figures_draw_on_given_or_new_axes(runs: pd.DataFrame, name: str) -> None:
    draw = getattr(fig, name)
    _, ax = plt.subplots()
    assert draw(runs, ax) is ax
    assert set(lines(ax)) == {"FedAvg", "FedNNNN"}
    assert names(ax) >= {"FedAvg", "FedNNNN"}
    assert ax.get_xlabel()
    assert ax.get_ylabel()
    other = draw(runs, names=False)
    assert other is not ax
    assert not names(other)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("values", [(0.0, 0.0), (1e-300, 1e99)])
def test_norms_axis_takes_any_norms(runs: pd.DataFrame, values: tuple) -> None:
    column = runs["round"].map(lambda number: values[number > 1])
    assert drawn(fig.norms(runs.assign(mean_update_norm=column)), "svg")


@pytest.mark.filterwarnings("error")
def test_figures_of_many_layers_raise_no_warning(make_run) -> None:
    """As resnet18's are: pandas warned at every figure that its table is fragmented."""
    layers = {f"conv{i}": {"mean_update_norm": 1.0} for i in range(120)}
    runs = fp.read_runs(make_run("FedNNNN", change=lambda line: line.update(layers=layers)))
    assert fig.accuracy(runs).lines


def test_figures_refuse_runs_without_rounds(runs: pd.DataFrame) -> None:
    with pytest.raises(fp.UserError, match=r"^runs: no round"):
        fig.accuracy(runs[runs["method"] == "x"])


def test_accuracy_is_the_mean_over_seeds(
    runs: pd.DataFrame,
) -> None:
    mine = runs[runs["method"] == "FedNNNN"].groupby("round")["test_acc"].mean().to_numpy() * 100.0
    assert lines(fig.accuracy(runs))["FedNNNN"] == pytest.approx(mine)
    assert f"FedNNNN {mine[-1]:.3g}" in chart(runs).alt


def test_accuracy_band_ends_with_the_second_seed(make_run) -> None:
    make_run("FedNNNN", seed=0, comm_round=6, done=4, finished=False)
    runs = fp.read_runs(make_run("FedNNNN", seed=1, comm_round=6).parent)
    ax = fig.accuracy(runs)
    (band,) = ax.collections
    assert len(lines(ax)["FedNNNN"]) == 6
    assert band.get_paths()[0].vertices[:, 0].max() == 4


def test_client_spread_is_over_all_seeds(make_run) -> None:
    for seed, norms in ((0, [1.0, 2.0, 3.0]), (1, [0.5, 4.0, 9.0])):
        folder = make_run(
            "FedNNNN", seed=seed, change=lambda line, n=norms: line.update(client_norms=n)
        )
    runs = fp.read_runs(folder.parent)
    ax = fig.client_spread(runs)
    edges = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert (edges.min(), edges.max()) == (0.5, 9.0)
    assert list(lines(ax)["FedNNNN"]) == [3.0] * 4
    assert "of all seeds" in chart(runs, "client-norms").caption


def test_agreement_marks_orthogonal_updates(runs: pd.DataFrame) -> None:
    ax = fig.agreement(runs)
    levels = {float(line.get_ydata()[0]) for line in ax.lines if len(line.get_ydata()) == 2}
    assert levels == {1.0, 0.1}
    assert "1/√100: orthogonal, equal length" in names(ax)


def test_agreement_draws_the_recorded_mark(make_run) -> None:
    """1/√m holds for updates of one length; under a power law it was 7.5 times too low."""

    def long(line: dict) -> None:
        line.update(mean_client_norm=4.0, orthogonal_norm=3.0)

    ax = fig.agreement(fp.read_runs(make_run("FedNNNN", change=long, client_weighting="samples")))
    (mark,) = (line for line in ax.lines if line.get_label() == "_orthogonal")
    assert list(mark.get_ydata()) == [0.75] * 4
    assert names(ax) == {"FedNNNN", "1: clients agree", "dotted: orthogonal"}


@pytest.mark.parametrize(
    ("draw", "given", "nearest"),
    [
        (fig.accuracy, {"column": "tst_acc"}, "test_acc"),
        (fig.accuracy, {"scale": "eror"}, "error"),
        (fig.norms, {"layer": "fc99"}, "fc1"),
        (fig.norms, {"norm": "mean_update"}, "mean_update_norm"),
        (fig.metric, {"name": "f1"}, "none"),
    ],
)
def test_figures_refuse_unknown_names(runs, draw, given: dict, nearest: str) -> None:
    with pytest.raises(fp.UserError) as caught:
        draw(runs, **given)
    assert str(caught.value).startswith(f"{next(iter(given))}: ")
    assert nearest in str(caught.value)
    assert "\n" not in str(caught.value)


def test_accuracy_by_seconds_never_goes_back(make_run) -> None:
    """The mean of the seconds of the seeds that are left was below the one before."""
    for seed, seconds, done in ((0, 9.0, 3), (1, 1.0, 6)):
        times = {"train": seconds, "aggregate": 0.0, "evaluate": 0.0}
        folder = make_run(
            "FedNNNN", seed=seed, comm_round=6, done=done,
            change=lambda line, t=times: line.update(seconds=t),
        )  # fmt: skip
    ax = fig.accuracy_by_seconds(fp.read_runs(folder.parent))
    assert list(ax.lines[0].get_xdata()) == [5.0, 10.0, 15.0]


def test_accuracy_axis_begins_at_0_and_names_its_scale(make_run) -> None:
    low = iter([0.0, 0.02, 0.01, 0.999])
    runs = fp.read_runs(make_run("FedNNNN", change=lambda line: line.update(test_acc=next(low))))
    for scale, named in ((None, True), ("error", True), ("linear", False)):
        ax = fig.accuracy(runs, scale=scale)
        assert ax.get_ylim()[0] >= 0.0
        assert ("error scale" in ax.get_ylabel()) == named


def test_figures_drawn_twice_name_each_line_once(runs: pd.DataFrame) -> None:
    figure, ax = plt.subplots()
    for _ in range(2):
        fig.accuracy(runs, ax)
    assert sorted(text.get_text() for text in ax.texts) == ["FedAvg", "FedNNNN"]
    figure.draw_without_rendering()
    for text in ax.texts:
        assert text.get_window_extent().x1 <= figure.bbox.x1
    assert fig.accuracy(runs, legend=True).get_legend() is not None


def test_leader_starts_at_the_end_of_its_line(make_run) -> None:
    make_run("PaperFedAvg", comm_round=8, done=4)
    ax = fig.accuracy(fp.read_runs(make_run("FedNNNN", comm_round=8).parent))
    starts = {text.get_text(): round(text.xy[0], 3) for text in ax.texts}
    assert starts == {"FedAvg": 0.5, "FedNNNN": 1.0}


def test_svg_names_a_generic_font(runs: pd.DataFrame) -> None:
    assert b"sans-serif" in drawn(fig.loss(runs), "svg")


def test_error_axis_separates_accuracies_near_100(make_run) -> None:
    reached = iter([0.9, 0.99, 0.999, 1.0])
    runs = fp.read_runs(
        make_run("FedNNNN", change=lambda line: line.update(test_acc=next(reached)))
    )
    ax = fig.accuracy(runs)
    at = ax.transData.transform([(1, value) for value in (90.0, 99.0, 99.9)])[:, 1]
    assert at[1] - at[0] == pytest.approx(at[2] - at[1])
    assert {90.0, 99.0, 99.9} <= set(ax.get_yticks())
    assert np.isfinite(ax.transData.transform((4, 100.0))).all()
    assert "error" in chart(runs).caption
    assert "error" in chart(runs, "seconds").caption


def test_caption_names_the_scale_of_the_axis(make_run) -> None:
    """It went by the best run, and the axis by the mean and its band."""
    for others, by_error in ((0.949, True), (0.9, False)):
        best = 0.93 if by_error else 0.96
        for seed, reached in enumerate((best, others, others, others)[: 2 if by_error else 4]):
            folder = make_run(
                "FedNNNN",
                name=f"{by_error}/{seed}",
                seed=seed,
                change=lambda line, a=reached: line.update(test_acc=a),
            )
        drawn_as = chart(fp.read_runs(folder.parent))
        assert (drawn_as.ax.get_yscale() == "function") == by_error
        assert ("error" in drawn_as.caption) == by_error


def test_accuracy_by_seconds_adds_them_up(runs: pd.DataFrame) -> None:
    ax = fig.accuracy_by_seconds(runs)
    assert ax.lines[0].get_xdata() == pytest.approx([1.3, 2.6, 3.9, 5.2])
    assert ax.get_xlabel() == "seconds"
    assert fig.accuracy_by_seconds(runs.assign(**{"seconds.train": 7200.0})).get_xlabel() == "hours"
    assert not fig.accuracy_by_seconds(runs.assign(**dict.fromkeys(SECONDS, 0.0))).lines


@pytest.mark.slow
def test_norms_of_a_layer_and_a_custom_metric(make_run) -> None:
    runs = fp.read_runs(
        make_run("FedNNNN", change=lambda line: line.update(test_metrics={"mse": -line["round"]}))
    )
    layer = lines(fig.norms(runs, layer="fc2", norm="mean_client_norm"))["FedNNNN"]
    assert layer == pytest.approx(runs["layers.fc2.mean_client_norm"].to_numpy())
    bare = runs.assign(**{"layers..mean_update_norm": 7.0})  # of a parameter of no module
    assert set(lines(fig.norms(bare, layer=""))["FedNNNN"]) == {7.0}
    assert list(lines(fig.metric(runs, name="mse"))["FedNNNN"]) == [-1, -2, -3, -4]
    found = {c.name for c in condition_charts(arrange(runs), arrange(runs).iloc[:0], ())}
    assert {"norms-fc2", "norms-conv2", "metric-mse"} <= found


def test_variants_of_a_method_have_shades(make_run) -> None:
    """β 0.5 and β 1.1 looked the same."""
    betas = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2)
    for beta in betas:
        make_run("FedNNNN", beta=beta)
    runs = fp.read_runs(make_run("PaperFedAvg").parent)
    ax = fig.accuracy(runs)
    assert set(lines(ax)) == {"FedAvg", *(f"FedNNNN (β {beta:g})" for beta in betas)}
    assert names(ax) == set(lines(ax))
    shades = [line.get_alpha() for line in ax.lines if line.get_label() != "FedAvg"]
    assert shades == sorted(set(shades))
    two = fig.accuracy(runs[runs["beta"].isin([0.5, 1.1])])
    assert len({line.get_alpha() for line in two.lines}) == 2
    assert "FedNNNN (β 1.1)" in names(two)


@pytest.mark.parametrize(
    ("recorded", "said"),
    [
        ({"PaperFedAvg": "average", "FedExP": "average"}, "plain average"),
        ({"PaperFedAvg": "average", "FedExP": "midpoint"}, "models (FedAvg)"),
        ({"FedAdam": "served"}, "served model"),
        ({"PaperFedAvg": None}, "do not name"),
        ({"PaperFedAvg": "average", "FedExP": None}, "do not name (FedExP)"),
    ],
)
def test_caption_names_the_tested_model(make_run, recorded: dict, said: str) -> None:
    for method, model in recorded.items():
        folder = make_run(
            method,  # a run that an earlier version began does not say it of its first rounds
            change=lambda line, m=model: line.update(evaluated=m if line["round"] > 1 else None),
        )
    caption = chart(fp.read_runs(folder.parent)).caption
    assert said in caption
    assert ("plain average" in caption) == ("average" in recorded.values())


def test_served_model_is_drawn_beside_the_evaluated(make_run) -> None:
    runs = fp.read_runs(make_run("FedNNNN", change=lambda line: line.update(served_test_acc=0.125)))
    both = chart(runs, "served")
    titled = {ax.get_title(loc="left"): lines(ax)["FedNNNN"] for ax in both.ax.figure.axes}
    assert titled["evaluated model"] == pytest.approx(100 * runs["test_acc"].to_numpy())
    assert set(titled["served model"]) == {12.5}
    assert "served model FedNNNN 12.5" in both.alt


@pytest.mark.slow
def test_single_client_is_a_reference(make_run) -> None:
    make_run("FedNNNN")
    folder = make_run("PaperFedAvg", client_num_in_total=1, client_num_per_round=1)
    both = arrange(fp.read_runs(folder.parent))
    alone = both["condition"] == "single client"
    found = {c.name: c for c in condition_charts(both[~alone], both[alone], ["fc1"])}
    assert "single client" in lines(found["integrated-norm"].ax)
    assert "single client" not in lines(found["accuracy"].ax)
    own = {c.name for c in condition_charts(both[alone], both[alone], ["fc1"])}
    assert not own & {"agreement", "client-norms"}
    assert references(both, both[~alone])["run"].unique() == [folder.name]
    other = both.assign(model=both["model"].where(~alone, "resnet18"))
    assert references(other, both[~alone]).empty


def test_caption_says_that_a_seed_ended(make_run) -> None:
    make_run("FedNNNN", seed=0, comm_round=5)
    folder = make_run("FedNNNN", seed=1, comm_round=5)
    assert "continue alone" not in chart(fp.read_runs(folder.parent)).caption
    folder = make_run("FedNNNN", seed=2, comm_round=5, done=3)
    assert "continue alone" in chart(fp.read_runs(folder.parent)).caption


def test_accuracy_of_seeds_tested_in_other_rounds(make_run) -> None:
    def seldom(line: dict) -> None:
        if line["round"] % 2 == 0:
            line["test_acc"] = None

    make_run("FedNNNN", seed=0, comm_round=5)
    folder = make_run("FedNNNN", seed=1, comm_round=5, change=seldom)
    (line,) = fig.accuracy(fp.read_runs(folder.parent)).lines
    assert list(line.get_xdata()) == [1, 3, 5]


def test_agreement_of_unequal_weights_has_no_mark(make_run) -> None:
    runs = fp.read_runs(make_run("FedNNNN", client_weighting="samples"))
    assert names(fig.agreement(runs)) == {"FedNNNN", "1: clients agree"}


def test_accuracy_of_tables_joined_by_the_user(make_run) -> None:
    """Settings that one of the tables lacks stand behind the numbers then."""
    parts = [fp.read_runs(make_run("PaperFedAvg"))]
    parts += [fp.read_runs(make_run("FedNNNN", beta=beta)) for beta in (0.5, 1.1)]
    labels = {"FedAvg", "FedNNNN (β 0.5)", "FedNNNN (β 1.1)"}
    assert set(lines(fig.accuracy(pd.concat(parts)))) == labels
    with pytest.warns(UserWarning, match="only that one counts"):
        fig.accuracy(pd.concat([parts[0], parts[0].assign(run="again", folder="copy")]))


def test_method_name_may_begin_with_an_underscore(make_run) -> None:
    assert "_Own" in chart(fp.read_runs(make_run("my:_Own"))).alt


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["svg", "png"])
def test_figures_draw_names_in_any_script(make_run, kind: str) -> None:
    label = "规则方法_$x^2 β 0.0005"  # digits in a name stay, too
    runs = fp.read_runs(make_run(label))
    drawing = drawn(fig.accuracy(runs), kind)
    assert drawing == drawn(fig.accuracy(runs), kind)
    if kind == "svg":
        assert label in drawing.decode()
    if any("CJK" in name for name in get_font_names()):
        assert any("CJK" in name for name in fig.STYLE["font.family"])


@pytest.mark.slow
def test_figures_of_thousands_of_rounds_are_small(make_run) -> None:
    many = fp.read_runs(make_run("FedNNNN")).iloc[[0] * 4_000].reset_index(drop=True)
    draw = np.random.default_rng(0)
    many = many.assign(round=range(1, 4_001), test_acc=draw.uniform(0.5, 0.51, 4_000))
    many["client_norm_min"] = draw.uniform(0.1, 0.2, 4_000)
    for ax in (fig.accuracy(many), fig.client_spread(many)):
        assert len(drawn(ax, "svg")) < 80_000
