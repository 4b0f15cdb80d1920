"""Searches whose trials take no time: a stand-in writes their run folders."""

import json
from collections.abc import Callable
from dataclasses import replace
from math import inf, isnan
from pathlib import Path
from typing import Any

import pytest
import yaml

from fednnnn_plugin.quantities import Spread
from fednnnn_plugin.recipe import Recipe, dump_recipe, find_recipe, load_recipe
from fednnnn_plugin.reporting.study import Study
from fednnnn_plugin.run_folder.records import Summary
from fednnnn_plugin.tuning.options import Options, checked_options
from fednnnn_plugin.tuning.plan import Load, Measure, make_plan
from fednnnn_plugin.tuning.search import Search
from fednnnn_plugin.tuning.study_folder import StudyFolder

# A run's accuracy after a round, from its ``train_args`` and ``seed``, or NaN for neither accuracy
# nor loss; it may raise as a run.
Outcome = Callable[[dict[str, Any], int], float]


def loader(name: str, *own: str, **how: Any) -> Load:
    """What loads a recipe with ``own`` settings, and with those of a trial."""
    return lambda changes: load_recipe(find_recipe(name), [*own, *changes], **how)


class Searches:
    """Carries studies out; ``ran`` says the folder of every trial that was run, in turn."""

    def __init__(self, path: Path) -> None:
        self.folder = StudyFolder(path / "study")
        self.ran: list[str] = []
        self.said: list[str] = []
        self.with_classes = True
        self.stopped_at: Callable[[dict[str, Any]], float] = lambda train: inf
        self.top: Outcome = lambda train, number: 0.5  # of a metric of this name

        self.worst: Outcome = lambda train, number: 0.1  # of the clients' accuracies

    def trial(self, name: str) -> Path:
        return self.folder.path / "trials" / "FedNNNN" / name

    def begin(self, *overrides: str, measure: Measure | None = None, **options: object) -> None:
        base = load_recipe(find_recipe("digits_noniid_b_fednnnn"), overrides)
        asked = checked_options(dict.fromkeys(Options._fields) | options)
        self.folder.write_plan(base, make_plan(base, asked, measure))

    def search(self, outcome: Outcome) -> Study:
        def run(recipe: Recipe, _: object, folder: Path, mode: str, **how: Any) -> Summary:
            self.ran.append(folder.name)
            folder.mkdir(exist_ok=True, parents=True)
            text, rounds = dump_recipe(recipe), recipe.train_args.comm_round
            (folder / "recipe.yaml").write_text(text)
            train = yaml.safe_load(text)["train_args"] | {"seed": recipe.common_args.random_seed}
            with (folder / "metrics.jsonl").open("w") as file:
                rounds = int(min(rounds, self.stopped_at(train)))
                for number in range(1, rounds + 1):
                    accuracy = outcome(train, number)
                    loss = None if isnan(accuracy) else 1 - accuracy
                    shown = accuracy if self.with_classes and not isnan(accuracy) else None
                    record = {"round": number, "test_acc": shown, "test_loss": loss}
                    record["test_metrics"] = {"top": self.top(train, number)}
                    print(json.dumps(record), file=file, flush=True)
                    record["client_acc"] = Spread(0.5, 0.5, self.worst(train, number), 0.0)
                    for follower in how["followers"]:
                        follower.round_done(type("Record", (), record))
            summary = Summary("", 0, rounds, None, None, None, "sp", 1, "cpu", 1, 0.0, {})
            stopped = rounds < recipe.train_args.comm_round
            summary = replace(summary, stopped="at once" if stopped else None)
            summary.write(folder / "summary.json")
            return summary

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fednnnn_plugin.tuning.trial.run_federation", run)
            return self.search_really()

    def search_really(self) -> Study:
        """Run trials for all they cost."""
        return Search(self.folder, self.said.append, jobs=1).run()


@pytest.fixture
def searches(tmp_path: Path) -> Searches:
    return Searches(tmp_path)
