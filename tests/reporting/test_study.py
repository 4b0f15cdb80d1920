"""A study folder: how it is read, its figures and their captions."""

import math
from pathlib import Path
from typing import Any

import pytest
import yaml

import fednnnn_plugin as fp
from fednnnn_plugin.reporting.build import build_report
from fednnnn_plugin.reporting.search_figures import headline, search_figures
from fednnnn_plugin.reporting.study import is_study, read_study

from .conftest import HEAD, OWN, PLAN, RATE, STEPS, bare, write_study


def test_study_by_hand(tmp_path: Path) -> None:
    folder = write_study(
        tmp_path,
        OWN.format(0.75, 0.6, "1e-06"),  # the order in which they ended
        OWN.format(0.5, 0.5, 0.8),
        RATE.format(0.9, 0.1),
        RATE.format(0.9, 0.05),
        "own,FedNNNN,pruned,0.99,0.99,1,0.99,,1,trials/x,,0.5,1e-06",
    )
    study = read_study(folder)
    assert is_study(tmp_path)
    assert study.plan.keys == ["learning_rate", "beta", "gamma"]
    assert list(study.trials["learning_rate"][:2]) == [0.05, 0.1]  # the order of the grid
    assert list(study.trials["beta"][2:]) == [0.5, 0.5, 0.6]
    rate, own = study.plan.steps
    assert (len(rate), len(own), len(study.of(own))) == (2, 4, 3)
    assert study.chosen(rate) == {"learning_rate": 0.05}  # of equal ones the first of the grid
    assert study.chosen(own) == {"beta": 0.6, "gamma": 1e-6}
    assert math.isnan(study.of(own)["value"].iloc[0])  # of a pruned trial
    losses = (RATE.format(3.0, 0.05), RATE.format(2.5, 0.1))
    by_loss = read_study(write_study(tmp_path, *losses, metric="final_loss"))
    assert by_loss.chosen(rate) == {"learning_rate": 0.1}
    assert "final validation loss 2.5000)" in headline(by_loss)
    below_zero = (RATE.format(0.5, 0.05), RATE.format(-1.5, 0.1))
    by_loss = read_study(write_study(tmp_path, *below_zero, metric="final_loss"))
    assert by_loss.chosen(rate) == {"learning_rate": 0.1}
    values = [0.31622776601683794, 0.30000000000000004, 0.13436424411240122]  # to the last bit
    step = STEPS[0] | {"grid": {"learning_rate": values}}
    folder = write_study(tmp_path, *(RATE.format(0.5, value) for value in values), steps=[step])
    assert list(read_study(folder).trials["learning_rate"]) == values


RIGHT = RATE.format(0.8, 0.05)
CONTENTS = [b"", b"a,b\n1,2\n", b'"unclosed', b"a\n1,2,3", b"\xff\0", None]
CONTENTS += [
    "\n".join([HEAD, RIGHT, wrong]).encode()
    for wrong in (
        RATE.format(0.9, 0.3),  # not of the grid
        RATE.format(0.9, 0.05),  # a second time
        "eta,Pap",
    )
]


@pytest.mark.parametrize("content", CONTENTS)
def test_study_with_a_damaged_table_is_refused(
    make_run: Any, tmp_path: Path, content: bytes | None
) -> None:
    """A report has what else there is."""
    path = write_study(tmp_path / "study", RIGHT) / "trials.csv"
    path.unlink()
    assert "No trial has finished yet." in headline(read_study(path.parent))  # it has just begun
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(fp.UserError, match=r"^[^\n]*trials\.csv: [^\n]*$") as refused:
        read_study(path.parent)
    folders = [make_run("FedNNNN", change=bare), path.parent]
    assert build_report(folders, tmp_path / "out").warnings == (str(refused.value),)


WRONG = (
    {"metric": None},
    {"steps": []},
    {"steps": [STEPS[0] | {"name": "../up"}]},
    {"steps": [STEPS[0] | {"grid": {key: list(range(99)) for key in "abcd"}}]},
    {"steps": [STEPS[0] | {"grid": {"state": [0.5]}}]},
)
DAMAGED = [yaml.safe_dump({**PLAN, "steps": STEPS, **wrong}) for wrong in WRONG]


@pytest.mark.parametrize("text", ["", "{", "[1]", "steps: 1", *DAMAGED])
def test_study_with_a_damaged_plan_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "study.yaml").write_text(text)
    with pytest.raises(fp.UserError, match=r"^[^\n]*study\.yaml[^\n]*$"):
        read_study(tmp_path)


def test_search_draws_and_tells_its_steps(study: Path) -> None:
    heat = fp.figures.search(study)
    assert [text.get_text() for text in heat.texts] == ["91.0", "pruned", "93.0"]
    assert (heat.get_xlabel(), heat.get_ylabel()) == ("β (beta)", "γ (gamma)")
    with pytest.raises(fp.UserError, match=r"step: 'etta': .*did you mean 'eta'"):
        fp.figures.search(study, step="etta")
    line = fp.figures.search(study, step="eta")
    assert list(line.lines[0].get_xdata()) == [0.05, 0.1]
    assert list(line.lines[0].get_ydata()) == pytest.approx([80.0, 70.0])
    said = {name: caption for name, caption, _ in search_figures(read_study(study))}
    for best in ("η 0.05 (FedAvg: validation accuracy 80.00 %)", "β 0.6, γ 1e-06 (FedNNNN: "):
        assert best in headline(read_study(study))
    assert "3 of 4 trials have ended" in said["own"]
    assert "widen" in said["eta"]
    assert "16.7 %" in said["eta"]
    of_clients = write_study(study.with_name("worst"), RATE.format(0.8, 0.05), metric="worst_10")
    captions = {name: caption for name, caption, _ in search_figures(read_study(of_clients))}
    assert "judged on each client's own part" in captions["eta"]
    table = study / "trials.csv"
    diverged = ("own,FedNNNN,pruned,,", "own,FedNNNN,finished,0.1,")
    table.write_text(table.read_text().replace(*diverged))
    (mesh,) = fp.figures.search(study).collections  # whose colours are not of that trial
    assert len({tuple(mesh.to_rgba(value)) for value in (10.0, 91.0, 93.0)}) == 3


def test_cell_is_the_best_over_a_third_key(tmp_path: Path) -> None:
    grid = {"beta": [0.5], "gamma": [0.8, 0.9], "prox_mu": [0.1, 0.2]}
    folder = write_study(tmp_path, steps=[STEPS[1] | {"grid": grid}])
    trials = ((0.6, 0.8, 0.1), (0.7, 0.8, 0.2), (0.9, 0.9, 0.1), (0.5, 0.9, 0.2))
    rows = [f"own,FedNNNN,finished,{v},{v},30,0.9,1,30,c,0.5,{g},{m}" for v, g, m in trials]
    head = HEAD.replace("learning_rate,beta,gamma", "beta,gamma,prox_mu")
    (folder / "trials.csv").write_text("\n".join([head, *rows]) + "\n")
    assert [text.get_text() for text in fp.figures.search(folder).texts] == ["70.0", "90.0"]
