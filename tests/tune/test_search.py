"""Which points are visited, what counts as their result, and what is chosen."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from fednnnn_plugin.errors import RunError, UserError
from fednnnn_plugin.recipe import dump_recipe, load_recipe

from .conftest import BETA_WITHOUT_LOSS, Outcome, Searches

THREE = {"beta": [0.5, 0.7, 0.9]}
NAMES = ["beta=0.5", "beta=0.7", "beta=0.9"]


def hill(train: dict[str, Any], _round: int) -> float:
    """Best at β 0.7."""
    return 0.9 - abs(train["beta"] - 0.7)


def ending_at(beta: float, error: BaseException) -> Outcome:
    """The same, but that one point's run ends in its second round."""

    def outcome(train: dict[str, Any], number: int) -> float:
        if train["beta"] == beta and number == 2:
            raise error
        return hill(train, number)

    return outcome


def trials(searches: Searches, step: str = "FedNNNN") -> list[optuna.trial.FrozenTrial]:
    """What Optuna's own tools read."""
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(searches.folder.journal)))
    return optuna.load_study(study_name=step, storage=storage).trials


def train_args(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(dump_recipe(load_recipe(path)))["train_args"]
    return found


def test_every_point_once_and_the_best_is_chosen(searches: Searches) -> None:
    searches.begin(grids=THREE, rounds=3)
    study = searches.search(hill)
    assert searches.ran == NAMES
    assert list(study.trials["value"]) == pytest.approx([0.7, 0.9, 0.7])
    assert list(study.trials["best_round"]) == [1, 1, 1]
    assert study.chosen(study.plan.steps[0]) == {"beta": 0.7}
    searches.folder.write_best(study)
    assert train_args(searches.folder.best)["beta"] == 0.7
    text = searches.folder.best.read_text(encoding="utf-8")
    assert "# FedNNNN: FedNNNN, 3 rounds: beta in 0.5, 0.7, 0.9\n" in text
    assert "3 of 3 points have a result: 3 finished" in text
    assert "best: beta 0.7: best_accuracy 0.9000" in text
    # Optuna's own reading of it, and so its dashboard's.
    assert [trial.state for trial in trials(searches)] == [TrialState.COMPLETE] * 3
    assert trials(searches)[1].intermediate_values == pytest.approx({1: 0.9, 2: 0.9, 3: 0.9})


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), OSError("full")])
def test_what_was_cut_short_has_no_result_and_is_run_again(
    searches: Searches, error: BaseException
) -> None:
    searches.begin(grids=THREE, rounds=3)
    with pytest.raises(type(error)):
        searches.search(ending_at(0.7, error))
    assert [trial.params for trial in trials(searches)] == [{"beta": 0.5}]
    study = searches.search(hill)
    assert searches.ran == ["beta=0.5", "beta=0.7", "beta=0.7", "beta=0.9"]
    assert list(study.trials["state"]) == ["finished"] * 3
    assert study.chosen(study.plan.steps[0]) == {"beta": 0.7}
    assert len(trials(searches)) == 3


def test_a_point_that_failed_is_a_result_too(searches: Searches) -> None:
    searches.begin(grids=THREE, rounds=3)
    study = searches.search(ending_at(0.7, RunError("every client diverged")))
    assert list(study.trials["state"]) == ["finished", "failed", "finished"]
    assert study.chosen(study.plan.steps[0]) == {"beta": 0.5}  # of equal ones the first
    assert "every client diverged" in searches.said[1]
    searches.folder.write_best(study)
    text = searches.folder.best.read_text(encoding="utf-8")
    assert "3 of 3 points have a result: 2 finished, 1 failed" in text
    searches.search(hill)
    assert searches.ran == NAMES


def test_where_none_finished_the_reason_is_said(searches: Searches) -> None:
    searches.begin(grids={"beta": [0.7]}, rounds=3)
    with pytest.raises(RunError, match=r"FedNNNN: no trial finished: every client diverged"):
        searches.search(ending_at(0.7, RunError("every client diverged")))


def test_a_loss_that_is_not_finite_is_a_failure(searches: Searches) -> None:
    searches.begin(grids={"beta": [0.7, BETA_WITHOUT_LOSS]}, rounds=2, metric="final_loss")
    study = searches.search(lambda train, number: 0.1 * number)
    assert list(study.trials["state"]) == ["finished", "failed"]
    assert study.trials["value"][0] == pytest.approx(0.8)
    searches.search(hill)
    assert len(searches.ran) == 2


def test_the_lowest_loss_is_best(searches: Searches) -> None:
    searches.begin(grids=THREE, rounds=1, metric="final_loss")
    study = searches.search(hill)
    assert study.chosen(study.plan.steps[0]) == {"beta": 0.7}


def test_a_hopeless_trial_is_stopped_and_stays_so(searches: Searches) -> None:
    searches.begin(grids={"beta": [0.6, 0.65, 0.7, 0.75, 2.0, 0.8]}, rounds=6, prune=True)
    study = searches.search(lambda train, number: 0.05 * number / train["beta"])
    best = study.trials.set_index("beta")
    assert best["state"][2.0] == "pruned"
    assert best["rounds"][2.0] == 2  # a third of the rounds are waited for
    assert best["state"][0.6] == "finished"
    count = len(searches.ran)
    searches.search(hill)
    assert len(searches.ran) == count


def test_the_second_step_goes_on_from_what_the_first_chose(searches: Searches) -> None:
    searches.begin(grids={"learning_rate": [0.01, 0.1, 0.2], "beta": [0.5, 0.7]}, rounds=1)
    study = searches.search(lambda train, _: 1 - abs(train["learning_rate"] - 0.1))
    assert list(study.trials["step"]) == ["learning-rate"] * 3 + ["FedNNNN"] * 2
    for name in ("beta=0.5", "beta=0.7"):
        tried = train_args(searches.folder.path / "trials" / "FedNNNN" / name / "recipe.yaml")
        assert tried["learning_rate"] == 0.1
    searches.folder.write_best(study)
    assert train_args(searches.folder.best)["learning_rate"] == 0.1


def remove_folder(searches: Searches) -> None:
    shutil.rmtree(searches.folder.path / "trials" / "FedNNNN" / "beta=0.7")


def remove_summary(searches: Searches) -> None:
    (searches.folder.path / "trials" / "FedNNNN" / "beta=0.7" / "summary.json").unlink()


@pytest.mark.parametrize("harm", [remove_folder, remove_summary])
def test_run_folders_decide_what_is_finished(
    searches: Searches, harm: Callable[[Searches], None]
) -> None:
    searches.begin(grids=THREE, rounds=3)
    searches.search(hill)
    harm(searches)
    searches.search(hill)
    assert searches.ran == [*NAMES, "beta=0.7"]


def test_without_its_journal_a_study_repeats_nothing_that_finished(searches: Searches) -> None:
    searches.begin(grids=THREE, rounds=3)
    first = searches.search(hill)
    searches.folder.journal.unlink()
    again = searches.search(hill)
    assert searches.ran == NAMES
    assert again.trials.equals(first.trials)
    assert len(trials(searches)) == 3


def test_a_run_of_other_settings_is_neither_a_result_nor_replaced(searches: Searches) -> None:
    searches.begin(grids=THREE, rounds=3)
    searches.search(hill)
    folder = searches.folder.path / "trials" / "FedNNNN" / "beta=0.7"
    stored = folder / "recipe.yaml"
    stored.write_text(stored.read_text().replace("batch_size: ", "batch_size: 1"))
    kept = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(UserError, match=r"train_args.batch_size"):
        searches.search_really()
    assert kept.items() <= {path: path.read_bytes() for path in folder.iterdir()}.items()


def test_half_a_line_at_the_journal_s_end_is_dropped(searches: Searches) -> None:
    searches.begin(grids=THREE, rounds=3)
    searches.search(hill)
    whole = searches.folder.journal.read_bytes()
    searches.folder.journal.write_bytes(whole[:-20])  # of the third trial
    study = searches.search(hill)
    assert searches.ran == NAMES
    assert list(study.trials["state"]) == ["finished"] * 3
    lines = searches.folder.journal.read_text().splitlines()
    assert all(json.loads(line) for line in lines)
    assert len(trials(searches)) == 3


@pytest.mark.parametrize("content", ["{}\n{}\n", "nonsense\nnonsense\n", '{"op_code": 0}\n'])
def test_a_damaged_journal_is_one_line_and_can_be_moved_away(
    searches: Searches, content: str
) -> None:
    searches.begin(grids=THREE, rounds=3)
    searches.search(hill)
    searches.folder.journal.write_text(content)
    with pytest.raises(UserError, match=r"journal.log: damaged") as caught:
        searches.search(hill)
    assert "\n" not in str(caught.value)
    searches.folder.journal.rename(searches.folder.path / "journal.old")
    searches.search(hill)
    assert searches.ran == NAMES


def test_a_damaged_record_is_one_line(searches: Searches) -> None:
    searches.begin(grids=THREE, rounds=3)
    searches.search(hill)
    searches.folder.journal.unlink()
    (searches.folder.path / "trials/FedNNNN/beta=0.7/metrics.jsonl").write_text("nonsense\n")
    with pytest.raises(UserError, match=r"beta=0.7/metrics.jsonl: damaged") as caught:
        searches.search(hill)
    assert "\n" not in str(caught.value)
