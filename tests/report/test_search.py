"""The figures and the table of a search."""

from pathlib import Path

import pytest

import fednnnn_plugin as fp
from fednnnn_plugin.report.build import build_report
from fednnnn_plugin.report.search_figures import headline, search_figures, write_figures
from fednnnn_plugin.report.study import read_study

from .conftest import STEPS, bare, write_study


def test_search_draws_a_heat_map_and_a_line(study: Path) -> None:
    heat = fp.figures.search(study)
    assert [text.get_text() for text in heat.texts] == ["91.0", "pruned", "93.0"]
    assert (heat.get_xlabel(), heat.get_ylabel()) == ("β (beta)", "γ (gamma)")
    with pytest.raises(fp.UserError, match=r"step: 'etta': .*did you mean 'eta'"):
        fp.figures.search(study, step="etta")
    line = fp.figures.search(study, step="eta")
    assert list(line.lines[0].get_xdata()) == [0.05, 0.1]
    assert list(line.lines[0].get_ydata()) == pytest.approx([80.0, 70.0])


def test_search_headline_and_captions(study: Path) -> None:
    said = {name: caption for name, caption, _ in search_figures(read_study(study))}
    assert headline(read_study(study)) == (
        "Best: η 0.05 (FedAvg: validation accuracy 80.00 %); "
        "β 0.6, γ 1e-06 (FedNNNN: validation accuracy 93.00 %)."
    )
    for part in ("Best so far", "3 of 4 trials have ended"):
        assert part in said["own"]
    for part in ("widen", "16.7 %"):
        assert part in said["eta"]
    table = (study / "trials.csv").read_text().splitlines()[1:]
    loss = read_study(write_study(study, *table, metric="final_loss"))
    assert "0.9100 nats" in headline(loss)


def test_search_with_an_unreadable_table_says_so(study: Path, tmp_path: Path) -> None:
    """It was called a study without a finished trial."""
    (study / "trials.csv").write_text("nothing")
    report = build_report([study], tmp_path / "out")
    assert "trials.csv" in report.text
    assert "No trial has finished yet" not in report.text
    assert any("trials.csv" in warning for warning in report.warnings)
    (study / "trials.csv").unlink()  # it has just begun
    begun = read_study(study)
    assert "No trial has finished yet." in headline(begun)
    assert begun.warnings == ()


def test_report_leaves_out_a_damaged_study(study: Path, make_run, tmp_path: Path) -> None:
    (study / "study.yaml").write_text("metric: 3")
    report = build_report([study, make_run("FedNNNN", change=bare)], tmp_path / "out")
    assert any("study.yaml" in warning for warning in report.warnings)


def test_heat_map_colours_ignore_a_diverged_trial(study: Path) -> None:
    table = (study / "trials.csv").read_text()
    (study / "trials.csv").write_text(
        table.replace("own,FedNNNN,pruned,,", "own,FedNNNN,finished,0.1,")
    )
    (mesh,) = fp.figures.search(study).collections
    assert len({tuple(mesh.to_rgba(value)) for value in (10.0, 91.0, 93.0)}) == 3


def test_heat_map_of_a_large_grid_has_a_colour_bar(tmp_path: Path) -> None:
    grid = {"beta": [round(0.1 * i, 1) for i in range(1, 21)], "gamma": [0.7, 0.8]}
    ax = fp.figures.search(write_study(tmp_path, steps=[STEPS[1] | {"grid": grid}]))
    assert not ax.texts
    assert len(ax.get_figure().axes) == 2


def test_search_figures_are_written_in_each_format(tmp_path: Path) -> None:
    study = read_study(write_study(tmp_path, steps=STEPS[:1]))
    write_figures(study)
    assert {path.suffix for path in (tmp_path / "figures").iterdir()} == {".svg", ".pdf", ".png"}
