"""Searches in figures and on the page, from study folders written by hand."""

import csv
import itertools
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.report.build import build_report
from fednnnn_plugin.report.canvas import Text
from fednnnn_plugin.report.charts import Chart
from fednnnn_plugin.report.heat_map import colour_floor, readable_on
from fednnnn_plugin.report.search import headline, search_jobs, trials_table, write_figures
from fednnnn_plugin.report.studies import METRICS, Study, read_studies, read_study

COLUMNS = ("step", "method", "state", "value", "best_accuracy", "best_round", "final_accuracy")
COLUMNS += ("final_loss", "rounds", "folder")
ACCURACY = METRICS["best_accuracy"]
FOUR = {"beta": [0.5, 0.6, 0.7, 0.8], "gamma": [0.6, 0.7, 0.8, 0.9]}

Point = tuple[float, ...]
# Of a grid point: its value, a state that has none, or None where the trial has not ended.
Outcome = Callable[..., float | str | None]


def step(name: str, grid: Mapping[str, list[float]], method: str = "FedNNNN") -> dict[str, Any]:
    return {"name": name, "method": method, "rounds": 30, "grid": dict(grid)}


def write_study(
    folder: Path, steps: Mapping[str, tuple[dict[str, Any], Outcome]], **settings: Any
) -> Path:
    """A study folder as ``fednnnn tune`` writes it, with a trial for each point that ended."""
    folder.mkdir(parents=True)
    plan = {"recipe": "digits_noniid_b_fednnnn", "metric": "best_accuracy", "validation": 0.1666}
    plan |= {"prune": False, "steps": [planned for planned, _ in steps.values()]} | settings
    (folder / "study.yaml").write_text(yaml.safe_dump(plan, sort_keys=False))
    keys = list(dict.fromkeys(key for planned, _ in steps.values() for key in planned["grid"]))
    with (folder / "trials.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow([*COLUMNS, *keys])
        for planned, outcome in steps.values():
            for values in itertools.product(*planned["grid"].values()):
                result = outcome(*values)
                if result is None:
                    continue
                state, value = ("finished", result) if isinstance(result, float) else (result, "")
                point = dict(zip(planned["grid"], values, strict=True))
                row = [planned["name"], planned["method"], state, value, value, 21, value, "", 30]
                table.writerow([*row, "trials/x", *(point.get(key, "") for key in keys)])
    return folder


def one_step(
    folder: Path, grid: Mapping[str, list[float]], outcome: Outcome, **settings: Any
) -> Path:
    return write_study(folder, {"FedNNNN": (step("FedNNNN", grid), outcome)}, **settings)


def read(folder: Path) -> Study:
    study, problems = read_study(folder)
    assert study is not None
    assert problems == []
    return study


def charts(study: Study) -> dict[str, Chart]:
    return {Path(job.stem).name: job.chart for job in search_jobs(study, "figures")}


def hill(beta: float, gamma: float) -> float:
    """0.97 at β 0.7, γ 0.8; a tenth of the distance less elsewhere."""
    return round(0.97 - 0.1 * (abs(beta - 0.7) + abs(gamma - 0.8)), 6)


def texts(chart: Chart) -> list[str]:
    return [item.text for item in chart.canvas.items if isinstance(item, Text)]


def test_the_best_of_a_4_by_4_grid(tmp_path: Path) -> None:
    study = read(one_step(tmp_path / "study", FOUR, hill))
    assert study.best(study.steps[0]) == ((0.7, 0.8), 0.97)
    assert headline(study) == "Best: β 0.7, γ 0.8 (FedNNNN: validation accuracy 97.00 %)."
    (chart,) = charts(study).values()
    assert chart.title == "FedNNNN: best validation accuracy over β and γ"
    assert chart.caption == (
        "Best: β 0.7, γ 0.8, 97.00 %. The frame marks it. 16 trials: 16 finished, 30 rounds each; "
        "pruner off. 16.7 % of the training images, held out, judged them; no test image was "
        "looked at."
    )
    assert chart.alt == (
        "Heat map of the best validation accuracy over β and γ, FedNNNN: best 97.00 % at β 0.7, "
        "γ 0.8. 16 trials: 16 finished."
    )
    shown = texts(chart)
    assert {"best validation accuracy (%)", "β (beta)", "γ (gamma)"} < set(shown)
    # From γ 0.6 up, β 0.5 first.
    values = [text for text in shown if text.startswith("9")]
    assert values[:4] == ["93.0", "94.0", "95.0", "94.0"]
    assert values[8:12] == ["95.0", "96.0", "97.0", "96.0"]


@pytest.mark.parametrize(
    ("peak", "edges"),
    [
        ((0.8, 0.8), ["The best β is the largest of the grid: widen it."]),
        ((0.7, 0.6), ["The best γ is the smallest of the grid: widen it."]),
        (
            (0.5, 0.9),
            [
                "The best β is the smallest of the grid: widen it.",
                "The best γ is the largest of the grid: widen it.",
            ],
        ),
        ((0.6, 0.7), []),
    ],
)
def test_a_best_value_on_the_edge_of_the_grid_is_said(
    tmp_path: Path, peak: Point, edges: list[str]
) -> None:
    folder = one_step(tmp_path / "s", FOUR, lambda *point: 0.9 if point == peak else 0.8)
    (chart,) = charts(read(folder)).values()
    for sentence in edges:
        assert sentence in chart.caption
    assert chart.caption.count("widen it") == len(edges)


def test_of_equal_values_the_first_of_the_grid_is_best(tmp_path: Path) -> None:
    # Descending, as a file may have it: the order given counts, not the size.
    grid = {"beta": [0.8, 0.7, 0.6], "gamma": [0.9, 0.8, 0.7]}
    tied = {(0.7, 0.7), (0.7, 0.8), (0.6, 0.9)}
    study = read(one_step(tmp_path / "s", grid, lambda *p: 0.9 if p in tied else 0.1))
    assert study.best(study.steps[0]) == ((0.7, 0.8), 0.9)
    (chart,) = charts(study).values()
    assert "3 trials reached it; the first of the grid counts." in chart.caption
    assert "widen it" not in chart.caption


def test_all_values_equal(tmp_path: Path) -> None:
    study = read(one_step(tmp_path / "s", FOUR, lambda *_: 0.5))
    assert study.best(study.steps[0]) == ((0.5, 0.6), 0.5)
    (chart,) = charts(study).values()
    assert "16 trials reached it" in chart.caption
    assert "widen it" not in chart.caption
    chart.canvas.save(tmp_path / "a.png")


def test_the_lowest_loss_is_best(tmp_path: Path) -> None:
    folder = one_step(
        tmp_path / "s", {"prox_mu": [0.1, 0.2, 0.3]}, lambda mu: 2.0 - mu if mu < 0.3 else 5.0,
        metric="final_loss",
    )  # fmt: skip
    study = read(folder)
    assert study.best(study.steps[0]) == ((0.2,), 1.8)
    (chart,) = charts(study).values()
    assert chart.title == "FedNNNN: final validation loss over μ"
    assert "Best: μ 0.2, 1.8000 nats." in chart.caption
    assert "μ (prox_mu)" in texts(chart)


def test_pruned_and_failed_trials_are_never_best(tmp_path: Path) -> None:
    def outcome(beta: float, gamma: float) -> float | str | None:
        if beta == 0.8:
            return {0.6: "pruned", 0.7: "failed"}.get(gamma)
        return hill(beta, gamma)

    study = read(one_step(tmp_path / "s", FOUR, outcome, prune=True))
    (chart,) = charts(study).values()
    assert "Best so far: β 0.7, γ 0.8" in chart.caption
    assert "16 trials: 12 finished, 1 pruned, 1 failed, 2 not run yet" in chart.caption
    assert "pruner on." in chart.caption
    assert {"pruned", "failed"} < set(texts(chart))
    assert [row[4] for row in chart.rows if row[2] == 0.8] == ["pruned", "failed"]


def test_a_line_over_one_value(tmp_path: Path) -> None:
    rates = [round(0.02 + 0.01 * index, 2) for index in range(14)]

    def outcome(rate: float) -> float | str:
        return "failed" if rate > 0.13 else 0.9 - abs(rate - 0.09)

    planned = step("learning-rate", {"learning_rate": rates}, "PaperFedAvg")
    study = read(write_study(tmp_path / "s", {"learning-rate": (planned, outcome)}))
    (chart,) = charts(study).values()
    assert chart.name == "learning-rate"
    assert chart.title == "FedAvg: best validation accuracy over η"
    assert chart.caption.startswith("Best: η 0.09, 90.00 %. The ring marks it. A cross")
    assert texts(chart).count("×") == 2
    assert {"η (learning_rate)", "best validation accuracy (%)"} < set(texts(chart))


def test_three_values_give_a_line_each(tmp_path: Path) -> None:
    grid = {"server_lr": [0.001, 0.01, 0.1], "server_beta1": [0.8, 0.9], "server_tau": [0.1, 0.2]}
    reached = {0.001: 0.6, 0.01: 0.8, 0.1: 0.7}
    folder = one_step(tmp_path / "s", grid, lambda lr, b, tau: reached[lr] + (b - 0.8) - tau / 10)
    found = charts(read(folder))
    assert list(found) == ["fednnnn-server-lr", "fednnnn-server-beta1", "fednnnn-server-tau"]
    assert found["fednnnn-server-lr"].title == (
        "FedNNNN: best validation accuracy over server η"
    )  # fmt: skip
    assert "Each point is the best over β1 and τ." in found["fednnnn-server-lr"].caption
    assert {"0.001", "0.01", "0.1"} < set(texts(found["fednnnn-server-lr"]))


def test_a_diverged_trial_does_not_take_the_others_colours(tmp_path: Path) -> None:
    # The median is 4 below the best; colours span three times that.
    values = [0.97, 0.95, 0.93, 0.92, 0.10]
    assert colour_floor(values, ACCURACY) == pytest.approx(0.97 - 3 * 0.04)
    assert colour_floor([0.97, 0.95, 0.93], ACCURACY) is None
    assert colour_floor([0.5] * 4, ACCURACY) is None
    losses = [1.0, 1.2, 1.4, 1.5, 9.0]
    assert colour_floor(losses, METRICS["final_loss"]) == pytest.approx(1.0 + 3 * 0.4)
    study = one_step(tmp_path / "s", {"beta": values, "gamma": [0.5, 0.6]}, lambda b, g: b)
    (chart,) = charts(read(study)).values()
    assert "All values below 85.0 % share a colour." in chart.caption


@given(st.tuples(*[st.integers(0, 255)] * 3))
def test_numbers_can_be_read_on_every_colour(color: tuple[int, int, int]) -> None:
    def luminance(text: str) -> float:
        channels = [int(text[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))

    cell = "#{:02x}{:02x}{:02x}".format(*color)
    low, high = sorted([luminance(cell), luminance(readable_on(cell))])
    assert (high + 0.05) / (low + 0.05) >= 4.5  # WCAG 2, AA


def test_the_best_cells_colour_and_frame(tmp_path: Path) -> None:
    (chart,) = charts(read(one_step(tmp_path / "s", FOUR, hill))).values()
    chart.canvas.save(tmp_path / "a.png")
    pixels = np.asarray(Image.open(tmp_path / "a.png").convert("RGB")).reshape(-1, 3)
    colors = {tuple(int(c) for c in pixel) for pixel in pixels}
    assert (0xFD, 0xE7, 0x25) in colors  # viridis' end: the best
    assert (0x44, 0x01, 0x54) in colors  # its beginning: the worst
    assert (0xD5, 0x5E, 0x00) in colors  # the frame


@pytest.mark.parametrize(
    "sizes", [(1, 1), (1, 2), (2, 1), (1, 1000), (1000, 1), (31, 32), (40, 2)]
)  # fmt: skip
def test_heat_maps_of_any_shape_stay_small(tmp_path: Path, sizes: tuple[int, int]) -> None:
    grid = {
        key: [(index + 1) / 1024 for index in range(n)]
        for key, n in zip(FOUR, sizes, strict=True)
    }  # fmt: skip
    (chart,) = charts(read(one_step(tmp_path / "s", grid, lambda b, g: (b + g) / 2))).values()
    assert chart.canvas.width < 520
    assert chart.canvas.height < 350
    chart.canvas.save(tmp_path / "a.png")


def test_figures_of_a_study_folder(tmp_path: Path) -> None:
    planned = step("learning-rate", {"learning_rate": [0.01, 0.03]}, "PaperFedAvg")
    steps: dict[str, tuple[dict[str, Any], Outcome]] = {
        "learning-rate": (planned, lambda rate: 0.8 + rate),
        "FedNNNN": (step("FedNNNN", FOUR), hill),
    }
    folder = write_study(tmp_path / "study", steps)
    before = {path.name for path in folder.iterdir()}
    write_figures(folder)
    assert {path.name for path in folder.iterdir()} == before | {"figures"}
    assert sorted(path.name for path in (folder / "figures").iterdir()) == [
        f"{name}.{kind}"
        for name in ("fednnnn", "learning-rate")
        for kind in ("csv", "pdf", "png", "svg")
    ]
    rows = list(csv.DictReader((folder / "figures/fednnnn.csv").open()))
    assert len(rows) == 16
    for row in rows:
        assert float(row["value"]) == hill(float(row["beta"]), float(row["gamma"]))
    first = {path: path.read_bytes() for path in (folder / "figures").iterdir()}
    write_figures(folder)
    assert {path: path.read_bytes() for path in (folder / "figures").iterdir()} == first


def test_figures_are_not_written_outside_of_the_study(tmp_path: Path) -> None:
    folder = one_step(tmp_path / "study", FOUR, hill)
    (tmp_path / "elsewhere").mkdir()
    (folder / "figures").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"--study: .*figures leads out of"):
        write_figures(folder)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_figures_of_what_is_no_study(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "study.yaml").write_text("[")
    with caplog.at_level(logging.WARNING):
        write_figures(tmp_path)
    assert caplog.messages == [f"{tmp_path}/study.yaml: not valid YAML; not used"]
    assert not (tmp_path / "figures").exists()


def test_a_study_that_has_just_begun(tmp_path: Path) -> None:
    folder = one_step(tmp_path / "s", FOUR, hill)
    (folder / "trials.csv").unlink()
    study = read(folder)
    assert headline(study) == "No trial has finished yet."
    (chart,) = charts(study).values()
    assert "16 trials: 16 not run yet" in chart.caption
    write_figures(folder)
    assert trials_table(study).rows == ()


def test_the_table_of_trials(tmp_path: Path) -> None:
    grid = {"beta": [0.5, 0.6], "gamma": [0.7, 0.8]}
    outcomes: dict[Point, float | str | None] = {
        (0.5, 0.7): 0.9, (0.5, 0.8): "pruned", (0.6, 0.7): 0.95, (0.6, 0.8): None,
    }  # fmt: skip
    table = trials_table(read(one_step(tmp_path / "s", grid, lambda *p: outcomes[p])))
    assert table.columns == (
        *("step", "method", "β", "γ", "state"),
        *("best validation accuracy (%)", "best round", "rounds"),
    )
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["FedNNNN", "FedNNNN", "0.5", "0.7", "finished", "90.00", "21", "30"],
        ["FedNNNN", "FedNNNN", "0.5", "0.8", "pruned", "–", "21", "30"],
        ["FedNNNN", "FedNNNN", "0.6", "0.7", "finished", "95.00", "21", "30"],
    ]
    assert [row[5].strong for row in table.rows] == [False, False, True]


# What a hostile or damaged trials.csv says of one point, and what is said of it.
LINES = {
    "FedNNNN,FedNNNN,won,0.9,,,,,30,x,0.5,0.6": "its state is none of finished, pruned, failed",
    "FedNNNN,FedNNNN,finished,1.5,,,,,30,x,0.5,0.6": "finished without a value that can be",
    "FedNNNN,FedNNNN,finished,nan,,,,,30,x,0.5,0.6": "finished without a value that can be",
    "FedNNNN,FedNNNN,finished,inf,,,,,30,x,0.5,0.6": "finished without a value that can be",
    "FedNNNN,FedNNNN,finished,-0.1,,,,,30,x,0.5,0.6": "finished without a value that can be",
    "FedNNNN,FedNNNN,finished,0.9,,,,,30,x,0.55,0.6": "not a point of the grid",
    "FedNNNN,FedNNNN,finished,0.9,,,,,30,x,nan,0.6": "not a point of the grid",
    "FedNNNN,FedNNNN,finished": "not a point of the grid",
    "other,FedNNNN,finished,0.9,,,,,30,x,0.5,0.6": "no step of the study",
    "=cmd()": "no step of the study",
    "FedNNNN,FedNNNN,finished,0.9,,,,,30,x,0.7,0.8": "a second line for its point",
}


@pytest.mark.parametrize(("line", "problem"), LINES.items())
def test_a_bad_line_costs_itself_alone(tmp_path: Path, line: str, problem: str) -> None:
    folder = one_step(
        tmp_path / "s", FOUR, lambda b, g: hill(b, g) if (b, g) != (0.5, 0.6) else None
    )
    with (folder / "trials.csv").open("a") as file:
        file.write(line + "\n")
    study, problems = read_study(folder)
    assert problems == [f"{folder}/trials.csv: line 17: {problem}; left out"]
    assert study is not None
    assert len(study.steps[0].trials) == 15
    assert study.best(study.steps[0]) == ((0.7, 0.8), 0.97)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\x00" * 500,
        b"\xff\xfe" * 500,
        b'step,method\n"' + b"x" * 300_000,
        b"step," * 20_000 + b"\n" + b"1," * 20_000,
        b"step\n" + b"FedNNNN\n" * 200_000,
        b"step,step,step\n,,,,,,,,\n",
        b'step\n"\n\n\n',
    ],
)
def test_a_table_that_is_none(tmp_path: Path, text: bytes) -> None:
    folder = one_step(tmp_path / "s", FOUR, hill)
    (folder / "trials.csv").write_bytes(text)
    study, problems = read_study(folder)
    assert study is not None
    assert len(problems) <= 1
    assert not any(char in line for line in problems for char in "\n\x00")
    assert headline(study) == "No trial has finished yet."
    write_figures(folder)


def test_a_pipe_in_the_tables_place(tmp_path: Path) -> None:
    folder = one_step(tmp_path / "s", FOUR, hill)
    (folder / "trials.csv").unlink()
    os.mkfifo(folder / "trials.csv")
    study, problems = read_study(folder)
    assert study is not None
    assert len(problems) == 1
    assert "not a plain file" in problems[0]


class _NoAliases(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


PLAN: dict[str, Any] = {
    "recipe": "r",
    "metric": "best_accuracy",
    "validation": 0.2,
    "prune": False,
    "steps": [step("FedNNNN", FOUR)],
}


@pytest.mark.parametrize(
    "change",
    [
        {"metric": "test_accuracy"},
        {"metric": ["best_accuracy"]},
        {"recipe": None},
        {"recipe": "r" * 1000},
        {"steps": []},
        {"steps": None},
        {"steps": "FedNNNN"},
        {"steps": [None]},
        {"steps": [step("a", FOUR)] * 2},
        {"steps": [step(str(index), FOUR) for index in range(21)]},
        {"steps": [step("a", {})]},
        {"steps": [step("a", {"beta": []})]},
        {"steps": [step("a", {"beta": [0.5, 0.5]})]},
        {"steps": [{**step("a", FOUR), "grid": [["beta", 0.5]]}]},
        {"steps": [{**step("a", FOUR), "grid": {"beta": "123"}}]},
        {"steps": [{**step("a", FOUR), "grid": {"beta": [[0.5]]}}]},
        {"steps": [{**step("a", FOUR), "grid": {"beta": [None]}}]},
        {"steps": [{**step("a", FOUR), "grid": {"beta": [True]}}]},
        {"steps": [{**step("a", FOUR), "grid": {"beta": [float("nan")]}}]},
        {"steps": [{**step("a", FOUR), "grid": {"beta": [float("inf")]}}]},
        {"steps": [{**step("a", FOUR), "grid": {"b": [1e-320, 1e300]}}]},
        {"steps": [step("a", {key: [float(v) for v in range(10)] for key in "abcdef"})]},
        {"steps": [{**step("a", FOUR), "rounds": "30"}]},
        {"steps": [{**step("a", FOUR), "rounds": 10**30}]},
        {"steps": [{"name": "a"}]},
    ],
)
def test_a_plan_that_is_none_is_left_out_in_one_line(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    (tmp_path / "study.yaml").write_text(yaml.dump(PLAN | change, Dumper=_NoAliases))
    assert read_study(tmp_path) == (None, [f"{tmp_path}/study.yaml: not a study's; not used"])


def test_further_keys_and_odd_settings_do_no_harm(tmp_path: Path) -> None:
    odd = {"prune": "yes", "validation": [1], "new": {"x": 1}}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(PLAN | odd))
    study = read(tmp_path)
    assert study.prune is None
    (chart,) = charts(study).values()
    assert "pruner not recorded. Part of the training images, held out" in chart.caption


finite = st.floats(-1e99, 1e99, allow_subnormal=False).filter(
    lambda value: value == 0.0 or abs(value) > 1e-99
)


@given(
    values=st.lists(finite, min_size=1, max_size=6, unique=True),
    metrics=st.lists(st.floats(0.0, 1.0), min_size=6, max_size=6),
)
def test_any_grid_and_any_values_can_be_drawn(
    tmp_path_factory: pytest.TempPathFactory, values: list[float], metrics: list[float]
) -> None:
    draw = itertools.cycle(metrics)
    for grid in ({"beta": values}, {"beta": values, "gamma": values[:2]}):
        folder = tmp_path_factory.mktemp("study") / "s"
        (chart,) = charts(read(one_step(folder, grid, lambda *_: next(draw)))).values()
        chart.canvas.save(folder / "a.svg")
        assert "nan" not in (folder / "a.svg").read_text()


def test_searches_alone_make_a_report(tmp_path: Path) -> None:
    folder = one_step(tmp_path / "studies/one", FOUR, hill)
    # A trial's run is the study's, not the report's.
    (folder / "trials/FedNNNN/a").mkdir(parents=True)
    (folder / "trials/FedNNNN/a/metrics.jsonl").write_text("{}\n")
    report = build_report([folder], tmp_path / "out", target=0.9)
    assert report.warnings == ()
    assert report.text == "Search: digits_noniid_b_fednnnn\n\n" + (
        "Best: β 0.7, γ 0.8 (FedNNNN: validation accuracy 97.00 %).\n"
    )
    out = tmp_path / "out"
    assert {str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()} == {
        "index.html",
        *(
            f"figures/search-digits-noniid-b-fednnnn/fednnnn.{kind}"
            for kind in ("svg", "pdf", "png", "csv")
        ),
    }
    page = report.page.read_text()
    assert "1 search</span>" in page
    assert 'href="#accuracy"' not in page
    assert 'href="#runs"' not in page


def test_runs_and_searches_on_one_page(
    two_methods: list[Path], make_run: Callable[..., Path], tmp_path: Path
) -> None:
    one_step(tmp_path / "studies/first", FOUR, hill)
    one_step(tmp_path / "studies/second", FOUR, hill)
    one_step(tmp_path / "runs/among-runs", {"beta": [0.5, 0.6]}, lambda b: b, recipe="other")
    report = build_report([tmp_path / "runs", tmp_path / "studies"], tmp_path / "out")
    assert report.warnings == ()
    page = report.page.read_text()
    names = ["other", "digits_noniid_b_fednnnn (first)", "digits_noniid_b_fednnnn (second)"]
    places = [page.index(f">Search: {name}</h2>") for name in names]
    assert page.index(">digits: non-IID, balanced</h2>") < places[0] < places[1] < places[2]
    assert page.count('aria-label="Heat map of the best validation accuracy over β and γ') == 2
    assert "4 runs" in page
    assert "3 searches" in page
    figures = tmp_path / "out/figures"
    assert (figures / "search-digits-noniid-b-fednnnn-first/fednnnn.svg").is_file()
    for name in names:
        assert f"Search: {name}\n" in report.text


def test_a_study_given_twice_is_read_once(tmp_path: Path) -> None:
    folder = one_step(tmp_path / "studies/one", FOUR, hill)
    studies, warnings = read_studies([folder, tmp_path / "studies"])
    assert len(studies) == 1
    assert warnings == [f"{folder}: given twice; read once"]


def test_a_study_that_cannot_be_used_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text("a: 1")
    with pytest.raises(UserError) as error:
        build_report([tmp_path], tmp_path / "out")
    assert str(error.value).splitlines() == [
        f"{tmp_path}/study.yaml: not a study's; not used",
        "no run with a recorded round was given",
    ]


def test_hostile_names_stay_text_and_inside_of_the_report(tmp_path: Path) -> None:
    attack = "</h2><script>alert(1)</script>"
    planned = {**step("../../up", {attack: [0.5, 0.6]}), "method": attack}
    folder = write_study(tmp_path / "s", {"a": (planned, lambda b: b)}, recipe="../" + attack)
    report = build_report([folder], tmp_path / "out")
    page = report.page.read_text()
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
    files = {p.relative_to(tmp_path / "out") for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert {str(file.parent) for file in files} == {
        ".",
        "figures/search-h2-script-alert-1-script",
    }
    assert {file.name for file in files} == {
        "index.html",
        *(f"up.{kind}" for kind in ("svg", "pdf", "png", "csv")),
    }
