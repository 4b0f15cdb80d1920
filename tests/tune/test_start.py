"""What is refused before anything is written, in one line."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fednnnn_plugin.cli import main
from fednnnn_plugin.recipe import Recipe, find_recipe, load_recipe
from fednnnn_plugin.report.study import read_plan
from fednnnn_plugin.tune.begin import begin_study
from fednnnn_plugin.tune.options import Options
from fednnnn_plugin.tune.plan import described
from fednnnn_plugin.tune.study_folder import StudyFolder

from .conftest import Searches

RECIPE = "digits_noniid_b_fednnnn"


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def tune(*options: str, recipe: str = RECIPE) -> Result:
    return CliRunner().invoke(main, ["tune", recipe, *options])


def few_clients(count: int, *more: str) -> list[str]:
    keys = [f"client_num_in_total={count}", f"client_num_per_round={count}"]
    return [part for key in keys for part in ("--set", f"train_args.{key}")] + list(more)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--grid", "beta"], "--grid: 'beta': write KEY=VALUES"),
        (["--grid", "beta=0.5", "--grid", "train_args.beta=0.6"], "--grid: a key is given twice"),
        (["--grid", "train_args.beta=0,1"], "--grid beta: 0.0: must be"),
        (["--grid", "eta=1"], "--grid eta: no key of train_args to search"),
        (["--metric", "loss"], "--metric: 'loss': "),
        (["--jobs", "0"], "--jobs: 0: "),
        (["--study", "a-file"], "--study: a-file: "),
        (["--study", "a-folder"], "--study: a-folder: not empty, and not a study"),
        (few_clients(1), "train_args.client_num_in_total: 1: "),
        # Three clients of two classes cannot hold ten; those on which η is chosen hold eight.
        (few_clients(3), "FedNNNN (n_class, balanced clients): train_args.client_num_in"),
        (["--grid", "beta=0.5", "--validation", "1e-9"], "FedNNNN (n_class, balanced clients): "),
    ],
)
def test_tune_with_a_mistake_leaves_nothing(tmp_path: Path, options: list[str], line: str) -> None:
    (tmp_path / "a-file").touch()
    (tmp_path / "a-folder").mkdir()
    (tmp_path / "a-folder" / "thesis.tex").touch()
    refused = tune(*options)
    assert refused.exit_code == 2, refused.output
    assert refused.output.startswith(line), refused.output
    assert len(refused.output.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-file", "a-folder"]


def test_grid_mistakes_are_said_at_once() -> None:
    refused = tune("--grid", "beta=-1.0,0.5", "--grid", "train_args.gamma=0.5,1")
    assert refused.exit_code == 2
    lines = refused.output.splitlines()
    assert [line.split(": must")[0] for line in lines] == ["--grid beta: -1.0", "--grid gamma: 1.0"]


@pytest.fixture
def study(searches: Searches) -> Path:
    searches.begin(grid={"beta": [0.5]}, rounds=1)
    searches.search(lambda train, number: 0.5)
    return searches.folder.path


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ([], "--study: study: it holds a study; continue with --resume"),
        (["--resume", "--set", "train_args.batch_size=5"], "--resume: train_args.batch_size: 5:"),
        (["--resume", "--grid", "beta=0.6"], "--resume: grid beta: "),
        (["--resume", "--rounds", "2"], "--resume: rounds: 2: the study in study has 1"),
        (["--resume", "--prune"], "--resume: prune: "),
    ],
)
def test_study_with_other_settings_is_refused(study: Path, options: list[str], line: str) -> None:
    files = {path: path.read_bytes() for path in study.rglob("*") if path.is_file()}
    refused = tune("--study", "study", *options)
    assert refused.exit_code == 2
    assert refused.output.startswith(line)
    assert len(refused.output.splitlines()) == 1
    assert files == {path: path.read_bytes() for path in study.rglob("*") if path.is_file()}


def test_study_begun_meanwhile_is_not_replaced(
    searches: Searches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While this one looked at its data."""

    def begins(*_: object, **__: object) -> None:
        searches.begin(grid={"beta": [0.5]}, rounds=1)

    monkeypatch.setattr("fednnnn_plugin.tune.begin._check_trials", begins)
    refused = tune("--study", "study", "--grid", "beta=0.6", "--rounds", "1")
    assert (refused.exit_code, refused.output.count("\n")) == (2, 1)
    assert refused.output.startswith("--resume: grid beta: ")
    assert read_plan(searches.folder.path).steps[0].grid == {"beta": (0.5,)}


def test_study_that_is_done_is_told_again(study: Path) -> None:
    done = tune("--study", "study", "--resume", "--grid", "train_args.beta=0.5")
    assert done.exit_code == 0, done.output
    assert "1 of 1 trials have ended: 1 finished" in done.output
    assert (study / "best.yaml").exists()
    assert list((study / "figures").glob("*.svg"))


@pytest.mark.parametrize("file", ["study.yaml", "base.yaml"])
def test_study_that_is_damaged_is_refused(study: Path, file: str) -> None:
    (study / file).write_text("nonsense\nnonsense\n", encoding="utf-8")
    refused = tune("--study", "study", "--resume")
    assert refused.exit_code == 2
    assert all(file in line for line in refused.output.splitlines())


MANY_CLASSES = """import torch

def load():
    images, labels = torch.rand(2000, 1, 8, 8), torch.arange(2000) % 100
    return images, labels, images[:200], labels[:200]
"""


def test_study_of_many_classes_deals_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "many_classes.py").write_text(MANY_CLASSES)
    keys = ["data_args.dataset=many_classes:load", "train_args.client_num_in_total=20"]
    keys += ["data_args.partition_method=iid", "train_args.client_num_per_round=5"]

    def load(changes: Sequence[str]) -> Recipe:
        return load_recipe(find_recipe(RECIPE), [*keys, *changes], allow_code=True)

    folder = StudyFolder(tmp_path / "study", allow_code=True)
    begin_study(folder, load, Options(paper=True, grid={"learning_rate": (0.1,)}))
    plan = read_plan(folder.path)
    assert plan.classes_per_client == 10
    (line,) = described(load, plan)
    assert "n_class, 10 classes a client" in line
