"""The figures and the table of a search."""

from pathlib import Path

import pytest
import yaml

import fednnnn_plugin as fp
from fednnnn_plugin.report.build import build_report
from fednnnn_plugin.report.search import headline, search_figures, write_figures
from fednnnn_plugin.report.study import read_study


def test_a_heat_map_and_a_line(study: Path) -> None:
    heat = fp.figures.search(study)
    assert [text.get_text() for text in heat.texts] == ["91.0", "pruned", "93.0"]
    assert (heat.get_xlabel(), heat.get_ylabel()) == ("β (beta)", "γ (gamma)")
    line = fp.figures.search(study, step="eta")
    assert list(line.lines[0].get_xdata()) == [0.05, 0.1]
    assert list(line.lines[0].get_ydata()) == pytest.approx([80.0, 70.0])


def test_what_is_said(study: Path) -> None:
    found = read_study(study)
    said = {name: caption for name, caption, _ in search_figures(found)}
    assert headline(found) == (
        "Best: η 0.05 (FedAvg: validation accuracy 80.00 %); "
        "β 0.6, γ 0.7 (FedNNNN: validation accuracy 93.00 %)."
    )
    assert "Best so far" in said["own"]
    assert "1 not run yet" in said["own"]
    assert "widen" in said["eta"]
    assert "16.7 %" in said["eta"]


def test_a_loss_is_best_where_it_is_lowest(study: Path) -> None:
    plan = yaml.safe_load((study / "study.yaml").read_text())
    (study / "study.yaml").write_text(yaml.safe_dump(plan | {"metric": "final_loss"}))
    found = read_study(study)
    assert "0.9100 nats" in headline(found)
    assert len(list(search_figures(found))) == 2


def test_a_table_of_trials_that_cannot_be_read_is_said(study: Path, tmp_path: Path) -> None:
    """It was called a study without a finished trial."""
    (study / "trials.csv").write_text("nothing")
    report = build_report([study], tmp_path / "out")
    assert "trials.csv" in report.text
    assert "No trial has finished yet" not in report.text
    assert any("trials.csv" in warning for warning in report.warnings)
    (study / "trials.csv").unlink()  # it has just begun
    assert "No trial has finished yet." in build_report([study.parent], tmp_path / "out").text


def test_a_study_that_is_none_is_left_out(study: Path, make_run, tmp_path: Path) -> None:
    (study / "study.yaml").write_text("metric: 3")
    report = build_report([study, make_run("FedNNNN")], tmp_path / "out")
    assert any("study.yaml" in warning for warning in report.warnings)


def test_one_trial_that_diverged_takes_no_colour_from_the_others(study: Path) -> None:
    table = (study / "trials.csv").read_text()
    (study / "trials.csv").write_text(
        table.replace("own,FedNNNN,pruned,,", "own,FedNNNN,finished,0.1,")
    )
    (mesh,) = fp.figures.search(study).collections
    assert len({tuple(mesh.to_rgba(value)) for value in (10.0, 91.0, 93.0)}) == 3


def test_a_large_grid_gets_a_colour_bar(study: Path) -> None:
    plan = yaml.safe_load((study / "study.yaml").read_text())
    plan["steps"][1]["grid"]["beta"] = [round(0.1 * i, 1) for i in range(1, 21)]
    (study / "study.yaml").write_text(yaml.safe_dump(plan))
    ax = fp.figures.search(study)
    assert not ax.texts
    assert len(ax.get_figure().axes) == 2


def test_figures_of_a_study_s_own(study: Path) -> None:
    write_figures(read_study(study))
    assert {path.suffix for path in (study / "figures").glob("own.*")} == {".svg", ".pdf", ".png"}
