"""What is refused before anything is written, in one line."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch.utils.data import ConcatDataset, TensorDataset

import fednnnn_plugin as fp
from fednnnn_plugin.cli import main
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.files import TEMPORARY
from fednnnn_plugin.reporting.metrics import Metric
from fednnnn_plugin.reporting.study import MAX_POINTS, read_plan
from fednnnn_plugin.tuning.begin import begin_study
from fednnnn_plugin.tuning.options import Options, parse_grid
from fednnnn_plugin.tuning.plan import described
from fednnnn_plugin.tuning.study_folder import StudyFolder

from .conftest import Searches, loader

RECIPE = "digits_noniid_b_fednnnn"


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refused(*options: str) -> str:
    """Return what ``fednnnn tune`` says."""
    result = CliRunner().invoke(main, ["tune", RECIPE, *options])
    assert result.exit_code == 2, result.output
    return result.output.replace(f"{Path.cwd()}/", "")  # a study's folder is absolute


def test_grid_by_hand() -> None:
    for given, values in (
        ("0.5:1.2:0.1", (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2)),  # no 0.7000000000000001
        ("1:2:0.4", (1.0, 1.4, 1.8)),  # the end is not on it
        (" 1e-3, 5e-4 ,1", (0.0005, 0.001, 1.0)),
        (0.7, (0.7,)),
        (np.array([0.8, 0.6]), (0.6, 0.8)),
    ):
        assert parse_grid(given) == values


FEW = "--set=client_num_per_round=1"
MANY = ",".join(map(str, range(MAX_POINTS + 1)))
GRIDS = ([], [True], "", None, True, "1:2:0", "1,1.0", "1:nan:1", "1e999999", MANY)


@pytest.mark.parametrize(
    ("given", "start"),
    [
        *(({"grid": {"beta": bad}}, "grid beta: ") for bad in GRIDS),
        ({"grid": 3}, "grid: 3: "),
        *(({"rounds": bad}, f"rounds: {bad!r}: ") for bad in ("3", 0)),
        *(({name: "no"}, f"{name}: 'no': must be") for name in ("paper", "prune")),
        ({"validation": 1.0}, "validation: 1.0: "),
        *(({"seeds": bad}, "seeds: ") for bad in ("", "1;2", "1,1", [1, 1], [], 3, [-1], ["1"])),
        ({"metric": "loss"}, "metric: 'loss': "),
        ({"jobs": "2"}, "jobs: '2': "),
        ({"jobs": 2, "model": torch.nn.Linear(1, 1)}, "jobs: 2: objects "),
        ({"study": 3}, "study: 3: "),
        ({"overrides": 3}, "overrides: 3: "),
        ({"modle": 3}, "modle: .*model"),
    ],
)
def test_wrong_argument_is_one_line(given: Any, start: str) -> None:
    with pytest.raises(UserError, match=rf"^{start}[^\n]*$"):
        fp.tune(RECIPE, **given)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--grid=beta"], "--grid: 'beta': write KEY=VALUES"),
        (["--grid==1"], "--grid: '=1': write KEY=VALUES"),
        (["--grid=beta=0.5", "--grid=train_args.beta=0.6"], "--grid: "),
        (["--grid=eta=1"], "--grid eta: "),
        (["--study=a-file"], "--study: a-file: "),
        (["--study=a-folder"], "--study: a-folder: "),
        (["--set=client_num_in_total=1", FEW], "train_args.client_num_in_total: 1: "),
        # Three clients of two classes cannot hold ten; those on which η is chosen hold eight.
        (["--set=client_num_in_total=3", FEW], "FedNNNN (n_class, balanced clients): train_args"),
        (
            ["--grid=beta=-1.0,0.5", "--grid=gamma=0.5,1"],
            "--grid train_args.beta: -1.0: \n--grid train_args.gamma: 1",
        ),
    ],
)
def test_tune_with_a_mistake_leaves_nothing(tmp_path: Path, options: list[str], line: str) -> None:
    (tmp_path / "a-file").touch()
    (tmp_path / "a-folder").mkdir()
    (tmp_path / "a-folder" / "thesis.tex").touch()
    lines = zip(refused(*options).splitlines(), line.splitlines(), strict=True)
    assert all(each.startswith(start) for each, start in lines)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-file", "a-folder"]


@pytest.fixture
def study(searches: Searches) -> Path:
    searches.begin(grid={"beta": [0.5]}, rounds=1)
    searches.search(lambda train, number: 0.5)
    return searches.folder.path


def test_study_with_other_settings_is_refused(study: Path) -> None:
    files = {path: path.read_bytes() for path in study.rglob("*") if path.is_file()}
    for options, line in (
        ([], "--study: study: it holds a study: continue with --resume"),
        (["--resume", "--set=train_args.batch_size=5"], "--resume: train_args.batch_size: 5:"),
        (["--resume", "--grid=beta=0.6"], "--resume: grid beta: "),
        (["--resume", "--rounds=2"], "--resume: rounds: 2: the study in study has 1"),
        (["--resume", "--prune"], "--resume: prune: "),
        (["--resume", "--no-paper"], "--resume: paper: False: the study in study has True"),
    ):
        said = refused("--study=study", *options)
        assert (said.startswith(line), said.count("\n")) == (True, 1)
    assert files == {path: path.read_bytes() for path in study.rglob("*") if path.is_file()}


def test_study_begun_meanwhile_is_not_replaced(
    searches: Searches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While this one looked at its data."""

    def begins(*_: object, **__: object) -> torch.Tensor:
        searches.begin(grid={"beta": [0.5]}, rounds=1)
        return torch.zeros(1, dtype=torch.int64)

    monkeypatch.setattr("fednnnn_plugin.tuning.begin._check_trials", begins)
    said = refused("--study=study", "--grid=beta=0.6", "--rounds=1")
    assert (said.startswith("--resume: grid beta: "), said.count("\n")) == (True, 1)
    assert read_plan(searches.folder.path).steps[0].grid == {"beta": (0.5,)}


@pytest.mark.slow
def test_study_is_told_again_unless_damaged(study: Path) -> None:
    words = ["--study=study", "--resume", "--grid=train_args.beta=0.5"]
    done = CliRunner().invoke(main, ["tune", RECIPE, *words])
    assert "1 of 1 trials have ended: 1 finished" in done.output
    assert (study / "best.yaml").exists()
    assert {path.suffix for path in (study / "figures").iterdir()} == {".svg", ".pdf", ".png"}
    for file in ("base.yaml", "study.yaml"):
        (study / file).write_text("nonsense\nnonsense\n", encoding="utf-8")
        assert all(file in line for line in refused(*words[:2]).splitlines())


def test_labels_that_are_numbers_are_judged_by_the_loss(tmp_path: Path) -> None:
    (tmp_path / "number_labels.py").write_text(
        "import torch\ndef load():\n"
        "    inputs, labels = torch.rand(100, 3), torch.arange(100.0)\n"
        "    return inputs, labels, inputs, labels\n"
        "def loss(outputs, targets):\n    return (outputs - targets).square().mean()\n"
    )
    keys = ["data_args.dataset=number_labels:load", "train_args.loss=number_labels:loss"]
    keys += ["data_args.partition_method=iid"]
    keys += ["train_args.client_num_in_total=5", "train_args.client_num_per_round=5"]
    load = loader(RECIPE, *keys, allow_code=True)

    def begin(name: str, metric: Metric | None) -> Metric:
        folder = StudyFolder(tmp_path / name, allow_code=True)
        begin_study(folder, load, Options(grid={"beta": (0.5,)}, metric=metric))
        return read_plan(folder.path).metric

    assert begin("study", None) == "final_loss"
    for metric in ("best_accuracy", "final_accuracy"):
        with pytest.raises(UserError, match=rf"^--metric {metric}: [^\n]* --metric final_loss$"):
            begin("other", metric)
    assert not (tmp_path / "other").exists()


def test_study_of_many_classes_deals_them_all(tmp_path: Path) -> None:
    (tmp_path / "many_classes.py").write_text(
        "import torch\ndef load():\n"
        "    images, labels = torch.rand(2000, 1, 8, 8), torch.arange(2000) % 100\n"
        "    return images, labels, images[:200], labels[:200]\n"
    )
    keys = ["data_args.dataset=many_classes:load", "train_args.client_num_in_total=20"]
    keys += ["data_args.partition_method=iid", "train_args.client_num_per_round=5"]
    load = loader(RECIPE, *keys, allow_code=True)
    folder = StudyFolder(tmp_path / "study", allow_code=True)
    begin_study(folder, load, Options(paper=True, grid={"learning_rate": (0.1,)}))
    plan = read_plan(folder.path)
    assert plan.classes_per_client == 10
    (line,) = described(load, plan)
    assert "n_class, 10 classes a client" in line


@pytest.mark.parametrize("part_of", [tuple, lambda pair: ConcatDataset([TensorDataset(*pair)])])
def test_paper_procedure_refuses_data_with_a_split(part_of: Any) -> None:
    """Of arrays and of Datasets."""
    parts = [part_of((torch.rand(8, 3), torch.arange(8) % 2))] * 2
    given: dict[str, Any] = {"model": torch.nn.Linear(3, 2), "data": (parts, parts[0])}
    with pytest.raises(UserError, match=r"^tune: paper=True: .* your data come divided; "):
        fp.tune(RECIPE, **given, paper=True, rounds=1, study="study")
    assert not Path("study").exists()


def test_beginning_that_was_killed_blocks_no_study(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path)
    (tmp_path / "base.yaml").touch()  # a user's, where no beginning was locked
    assert folder.has_others_files()
    for name in (".lock", f".study.yaml{TEMPORARY}"):
        (tmp_path / name).touch()
    assert not folder.has_others_files()
    (tmp_path / "thesis.tex").touch()
    assert folder.has_others_files()
