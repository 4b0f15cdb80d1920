"""Which points are visited, what counts as their result, and what is chosen."""

import json
import shutil
from math import nan
from typing import Any
from unittest.mock import Mock

import optuna
import pytest
import yaml
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from fednnnn_plugin.errors import RunError, UserError
from fednnnn_plugin.recipe import load_recipe
from fednnnn_plugin.reporting.study import Step, read_study
from fednnnn_plugin.tuning.plan import Measure
from fednnnn_plugin.tuning.search import Search

from .conftest import Outcome, Searches

NAMES = ["beta=0.5", "beta=0.7", "beta=0.9"]
DIVERGED = RunError("every client diverged")


def hill(train: dict[str, Any], _round: int) -> float:
    """Best at β 0.7."""
    return 0.9 - abs(train["beta"] - 0.7)


def ending_at(error: BaseException) -> Outcome:
    """The same, but that the run of β 0.7 ends in its second round."""

    def outcome(train: dict[str, Any], number: int) -> float:
        if train["beta"] == 0.7 and number == 2:
            raise error
        return hill(train, number)

    return outcome


def trials(searches: Searches) -> list[optuna.trial.FrozenTrial]:
    """What Optuna's own tools read, and so its dashboard."""
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(searches.folder.journal)))
    return optuna.load_study(study_name="FedNNNN", storage=storage).trials


@pytest.fixture
def three(searches: Searches) -> Searches:
    """A study of three points that has begun."""
    searches.begin(grid={"beta": [0.5, 0.7, 0.9]}, rounds=3)
    return searches


def test_search_visits_every_point_once(three: Searches) -> None:
    study = three.search(hill)
    assert three.ran == NAMES
    assert list(study.trials["value"]) == pytest.approx([0.7, 0.9, 0.7])
    assert list(study.trials["best_round"]) == [1, 1, 1]
    three.folder.write_best(study)
    text = three.folder.best.read_text(encoding="utf-8")
    found = yaml.safe_load(text)
    assert found["train_args"]["beta"] == 0.7
    assert found["data_args"]["validation_fraction"] == 0.0
    for said in ("3 rounds: beta in 0.5, 0.7, 0.9\n", "3 of 3 trials", "best_accuracy 0.9000"):
        assert said in text
    assert [trial.state for trial in trials(three)] == [TrialState.COMPLETE] * 3
    assert trials(three)[1].value == pytest.approx(0.9)


def test_seeds_are_averaged_over(searches: Searches) -> None:
    """Seed 1 is better at 0.5 by 0.1, seed 5 worse by 0.4: 0.7, and (0.6 + 0.1) / 2."""
    shift = {1: 0.1, 5: -0.4}

    def outcome(train: dict[str, Any], number: int) -> float:
        return hill(train, number) - 0.2 + (train["beta"] == 0.5) * shift[train["seed"]]

    searches.begin(grid={"beta": [0.5, 0.7]}, rounds=2, seeds=[1, 5], prune=True)
    study = searches.search(outcome)
    assert list(study.trials["value"]) == pytest.approx([0.35, 0.7])
    assert list(study.trials["folder"]) == ["trials/FedNNNN/beta=0.5", "trials/FedNNNN/beta=0.7"]
    values = {1: 0.6, 2: 0.6, 3: 0.1, 4: 0.1}  # of the one seed, then of the other
    assert trials(searches)[0].intermediate_values == pytest.approx(values)
    shutil.rmtree(searches.trial("beta=0.7") / "seed5")
    searches.search(outcome)
    assert searches.ran == ["seed1", "seed5"] * 3


def test_seed_that_fails_ends_its_trial(searches: Searches) -> None:
    searches.begin(grid={"beta": [0.5, 0.7]}, rounds=2, seeds=[1, 5, 2])

    def outcome(train: dict[str, Any], number: int) -> float:
        return (hill if train["seed"] == 1 else ending_at(DIVERGED))(train, number)

    for _ in range(2):  # and is not begun again
        study = searches.search(outcome)
        assert searches.ran == ["seed1", "seed5", "seed2", "seed1", "seed5"]
        assert list(study.trials["state"]) == ["finished", "failed"]
    assert "every client diverged" in searches.said[1]
    shutil.rmtree(searches.trial("beta=0.7") / "seed5")  # which repeats it
    assert list(searches.search(hill).trials["state"]) == ["finished"] * 2
    assert searches.ran[5:] == ["seed1", "seed5", "seed2"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("full")])
def test_trial_cut_short_is_run_again(three: Searches, error: BaseException) -> None:
    with pytest.raises(type(error)):
        three.search(ending_at(error))
    assert len(read_study(three.folder.path).trials) == 1
    study = three.search(hill)
    assert three.ran == ["beta=0.5", "beta=0.7", "beta=0.7", "beta=0.9"]
    assert study.chosen(study.plan.steps[0]) == {"beta": 0.7}
    assert list(study.trials["state"]) == ["finished"] * 3


def test_search_without_a_finished_trial(searches: Searches) -> None:
    searches.begin(grid={"beta": [0.7]}, rounds=3)
    with pytest.raises(RunError, match="trials/FedNNNN"):
        searches.search(ending_at(DIVERGED))
    shutil.rmtree(searches.trial("beta=0.7"))
    assert list(searches.search(hill).trials["state"]) == ["finished"]


def test_close_values_are_told_apart(searches: Searches) -> None:
    searches.begin(grid={"beta": [0.1234567, 0.1234568]}, rounds=1)
    searches.folder.write_best(searches.search(hill))
    assert "beta in 0.1234567, 0.1234568\n" in searches.folder.best.read_text()
    assert "beta 0.1234568  best accuracy" in searches.said[1]


def test_counts_are_integers_in_the_best_recipe(searches: Searches) -> None:
    searches.begin("partition_method=dirichlet", grid={"epochs": [1, 2], "gamma": [0.5]}, rounds=2)
    searches.folder.write_best(searches.search(lambda train, _: train["epochs"] / 10))
    best = load_recipe(searches.folder.best)
    assert (best.train_args.epochs, best.rule_settings["gamma"]) == (2, 0.5)


def test_trials_of_many_keys_have_folders(searches: Searches) -> None:
    """Names have 255 bytes at most; two points that differ in the last key have two names."""
    grid = {f"β{n}": (1 / 3,) for n in range(20)} | {"last": (1 / 3, 2 / 3)}
    step = Step(name="S", method="m", rounds=1, grid=grid)
    one, other = (searches.folder.trial(step, point) for point in step.points())
    assert one != other
    one.parent.mkdir(parents=True)
    one.with_name(f".{one.name}.lock").touch()


def test_metric_may_be_nan_in_a_round(searches: Searches) -> None:
    searches.top = lambda train, number: nan if number > train["beta"] * 2 else 1 - train["beta"]
    measure = Measure("top", lower_is_better=False)
    searches.begin(grid={"beta": [0.1, 0.5, 0.9]}, rounds=2, measure=measure)
    study = searches.search(hill)
    assert list(study.trials["state"]) == ["failed", "finished", "finished"]
    assert list(study.trials["value"][1:]) == pytest.approx([0.5, 0.1])
    assert "its best_metric is not finite" in searches.said[0]


def test_trial_that_diverges_fails(searches: Searches) -> None:
    """At β 0.5 in the last round, at β 0.7 with one of two seeds, in every round."""
    searches.with_classes = False
    grid = {"beta": [0.5, 0.7, 0.9]}
    searches.begin(grid=grid, rounds=3, metric="final_loss", seeds=[1, 5])

    def outcome(train: dict[str, Any], number: int) -> float:
        lost = {0.5: number == 3, 0.7: train["seed"] == 5, 0.9: number == 2}
        return nan if lost[train["beta"]] else hill(train, number)

    study = searches.search(outcome)
    assert list(study.trials["state"]) == ["failed", "failed", "finished"]
    assert study.chosen(study.plan.steps[0]) == {"beta": 0.9}
    assert "its final_loss is not finite" in searches.said[0]


def test_worst_tenth_of_the_clients_judges(searches: Searches) -> None:
    """Of the last round; the accuracy is best at another β."""
    searches.worst = lambda train, number: train["beta"] / number
    grid = {"beta": [0.5, 0.7, 0.9]}
    with pytest.raises(UserError, match=r"^--metric worst_10: .*per_client"):
        searches.begin(grid=grid, rounds=2, metric="worst_10")
    searches.begin("per_client=true", grid=grid, rounds=2, metric="worst_10")
    study = searches.search(hill)
    assert list(study.trials["value"]) == [0.25, 0.35, 0.45]
    assert study.chosen(study.plan.steps[0]) == {"beta": 0.9}
    assert searches.said[-1].count("worst 10 0.4500")


def test_trials_side_by_side_share_devices(
    three: Searches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fednnnn_plugin.tuning.trial.run_federation", run := Mock())
    with pytest.raises(RunError, match="not finite"):  # nothing was run
        Search(three.folder, three.said.append, jobs=3).run()
    ranks = run.call_args.kwargs["ranks"]
    assert (ranks.core_sharers, ranks.sharers("a GPU")) == (3, 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rounds", "metric", "state"),
    [
        (6, "final_loss", "pruned"),
        (6, "best_metric", "pruned"),  # of rounds with a metric alone
        (1, "best_accuracy", "finished"),  # after a third of the rounds, but not after the last
    ],
)
def test_trial_that_is_hopeless_is_pruned(
    searches: Searches, rounds: int, metric: str, state: str
) -> None:
    grid = {"beta": [0.6, 0.65, 0.7, 0.75, 2.0, 0.8]}
    measure = Measure("top", lower_is_better=False)
    searches.top = lambda train, number: 0.05 * number / train["beta"]
    searches.begin(grid=grid, rounds=rounds, prune=True, metric=metric, measure=measure)
    study = searches.search(searches.top if metric != "best_metric" else lambda train, number: nan)
    found = study.trials.set_index("beta")
    assert (found["state"][0.6], found["state"][2.0]) == ("finished", state)
    assert found["rounds"][2.0] == (2 if state == "pruned" else 1)
    if state == "pruned":
        assert list(study.trials["state"]) == ["finished"] * 4 + ["pruned"] * 2
    searches.search(hill)
    assert len(searches.ran) == 6


def test_seed_is_pruned_by_the_same_seed_of_others(searches: Searches) -> None:
    """In its second seed, which begins as well as the others and is behind after a third of it."""
    grid = {"beta": [0.1, 0.2, 0.3, 0.4, 0.5]}
    searches.begin(grid=grid, rounds=6, prune=True, metric="final_accuracy", seeds=[1, 5])

    def outcome(train: dict[str, Any], number: int) -> float:
        if train["seed"] == 1:
            return 0.9
        return 0.1 if train["beta"] == 0.5 and number < 4 else 0.5

    study = searches.search(outcome)
    assert list(study.trials["state"]) == ["finished"] * 4 + ["pruned"]
    assert list(trials(searches)[4].intermediate_values) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_seed_that_is_stopped_keeps_its_last_value(searches: Searches) -> None:
    """Of seed 1, stopped after its first round, the mean with seed 5 takes 0.5 for the third."""
    searches.begin(grid={"beta": [0.5]}, rounds=3, metric="final_accuracy", seeds=[1, 5])
    searches.stopped_at = lambda train: 1 if train["seed"] == 1 else 3
    study = searches.search(lambda train, number: 0.5 if train["seed"] == 1 else 0.3 * number)
    assert study.trials["value"].item() == pytest.approx((0.5 + 0.9) / 2)
    assert study.trials["rounds"].item() == 3


def test_second_step_starts_from_the_first_choice(searches: Searches) -> None:
    searches.begin(grid={"learning_rate": [0.01, 0.1, 0.2], "beta": [0.5, 0.7]}, rounds=1)
    study = searches.search(lambda train, _: 1 - abs(train["learning_rate"] - 0.1))
    assert list(study.trials["step"]) == ["learning-rate"] * 3 + ["FedNNNN"] * 2
    searches.folder.write_best(study)
    for path in (searches.trial("beta=0.7") / "recipe.yaml", searches.folder.best):
        assert yaml.safe_load(path.read_text())["train_args"]["learning_rate"] == 0.1


def test_journal_with_half_a_line_is_read(three: Searches) -> None:
    three.search(hill)
    journal = three.folder.journal
    journal.with_name("journal.log.lock").symlink_to("/nowhere/journal.log")
    journal.write_bytes(journal.read_bytes()[:-20])  # of the third trial
    study = three.search(hill)
    assert three.ran == [*NAMES, "beta=0.9"]  # whose end was not written
    assert list(study.trials["state"]) == ["finished"] * 3
    assert all(json.loads(line) for line in journal.read_text().splitlines())
    journal.write_text('{"op_code": 0}\n')
    with pytest.raises(UserError, match=r"^[^\n]*journal.log: damaged[^\n]*$"):
        three.search(hill)


def test_journal_is_written_on_behind_half_a_line(three: Searches) -> None:
    """Which a process beside this one has left that was killed."""
    journal, killed = three.folder.journal, []

    def outcome(train: dict[str, Any], number: int) -> float:
        if train["beta"] == 0.7 and not killed:
            killed.append(True)
            with journal.open("ab") as file:
                file.write(b'{"op_code":4,"work')
        return hill(train, number)

    study = three.search(outcome)
    assert list(study.trials["state"]) == ["finished"] * 3
    assert all(json.loads(line) for line in journal.read_text().splitlines())


CURVES = {0.5: (0.2, 0.9, 0.3), 0.7: (0.4, 0.5, 0.6)}


@pytest.mark.parametrize(
    ("metric", "values", "rounds", "best"),
    [
        ("best_accuracy", [0.9, 0.6], [2, 3], 0.5),
        ("final_accuracy", [0.3, 0.6], [2, 3], 0.7),
        ("final_loss", [0.7, 0.4], [2, 3], 0.7),
        ("best_metric", [0.2, 0.4], [1, 1], 0.5),  # which is better where it is lower
    ],
)
def test_best_and_final_are_told_apart(
    searches: Searches, metric: str, values: list[float], rounds: list[int], best: float
) -> None:
    def curve(train: dict[str, Any], number: int) -> float:
        return CURVES[train["beta"]][number - 1]

    own = metric == "best_metric"
    searches.top = curve
    measure = Measure("top", lower_is_better=True) if own else None
    searches.begin(grid={"beta": [0.5, 0.7]}, rounds=3, metric=metric, measure=measure)
    study = searches.search((lambda train, number: 0.5) if own else curve)
    assert list(study.trials["value"]) == pytest.approx(values)
    assert list(study.trials["best_round"]) == rounds
    assert study.chosen(study.plan.steps[0]) == {"beta": best}


def test_step_is_searched_anew_where_the_one_before_chooses_otherwise(searches: Searches) -> None:
    """A trial of η that had failed is repeated, and wins."""
    searches.begin(grid={"learning_rate": [0.01, 0.1], "beta": [0.5, 0.7]}, rounds=1)
    fails = [True]

    def outcome(train: dict[str, Any], number: int) -> float:
        if train["learning_rate"] == 0.1 and fails:
            raise DIVERGED
        return train["learning_rate"]

    searches.search(outcome)
    fails.clear()
    shutil.rmtree(searches.folder.path / "trials" / "learning-rate" / "learning_rate=0.1")
    searches.ran.clear()
    searches.said.clear()
    searches.search(outcome)
    assert searches.ran == ["learning_rate=0.1", "beta=0.5", "beta=0.7"]
    *trials, last = searches.said
    assert [line.split()[0] for line in trials] == ["[4/4]", "[3/4]", "[4/4]"]
    assert last == "FedNNNN: 2 trials are equally good: the first is chosen"
    searches.search(outcome)
    assert len(searches.ran) == 3
    fails.append(True)  # and once more, where the folders have the other choice's runs
    shutil.rmtree(searches.folder.path / "trials" / "learning-rate" / "learning_rate=0.1")
    searches.search(outcome)
    assert searches.ran[3:] == ["learning_rate=0.1", "beta=0.5", "beta=0.7"]


def test_trial_that_was_interrupted_as_it_ended_is_run_again(three: Searches) -> None:
    """After what it measured was written down, and before it was told to have finished."""
    with pytest.raises(KeyboardInterrupt):
        three.search(ending_at(KeyboardInterrupt()))
    done, cut = trials(three)
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(three.folder.journal)))
    storage.create_new_trial(
        storage.get_study_id_from_name("FedNNNN"),
        template_trial=optuna.trial.create_trial(
            state=TrialState.FAIL,
            params=cut.params,
            distributions=cut.distributions,
            user_attrs=done.user_attrs | {"folder": "trials/FedNNNN/beta=0.7"},
        ),
    )
    study = three.search(hill)
    assert three.ran == ["beta=0.5", "beta=0.7", "beta=0.7", "beta=0.9"]
    assert list(study.trials["state"]) == ["finished"] * 3
