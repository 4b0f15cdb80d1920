"""The study folder: what is searched, and what was found so far.

``base.yaml`` is the recipe, ``study.yaml`` the plan, ``trials/<step>/<values>/`` a run folder each,
``journal.log`` Optuna's storage, ``trials.csv``, ``best.yaml`` and ``figures/`` the outcome.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import yaml
from filelock import FileLock

from fednnnn_plugin.engine.files import write_atomically
from fednnnn_plugin.engine.summary import versions
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.recipe import Recipe, dump_recipe, load_recipe
from fednnnn_plugin.report.study import (
    COLUMNS,
    PLAN,
    TRIALS,
    Plan,
    Step,
    Study,
    is_study,
    read_study,
)


class StudyFolder:
    """Paths of a study's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.base = path / "base.yaml"
        self.journal = path / "journal.log"
        self.best = path / "best.yaml"

    def locked(self) -> FileLock:
        """Return the kernel's lock on the files that several processes write."""
        return FileLock(self.path / ".lock")

    def trial(self, step: Step, point: Mapping[str, float]) -> Path:
        """Return a trial's run folder, named as in ``beta=0.7,gamma=0.8``."""
        name = ",".join(f"{key}={value!r}" for key, value in point.items())
        return self.path / "trials" / step.name / name

    def refuse_what_is_there(self) -> None:
        """Refuse to begin a study in a folder that holds anything.

        Raises:
            UserError: it does.
        """
        if is_study(self.path):
            raise UserError(
                f"--study: {self.path}: it already holds a study; go on with --resume, or choose "
                "another folder"
            )
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise UserError(f"--study: {self.path}: not empty, and not a study")

    def begin(self, recipe: Recipe, plan: Plan) -> None:
        """Write down what is searched.

        Raises:
            UserError: the folder cannot be written to.
        """
        stored = yaml.safe_dump(plan.model_dump(mode="json"), sort_keys=False)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomically(self.base, dump_recipe(recipe).encode())
            write_atomically(self.path / PLAN, stored.encode())
        except OSError as error:
            raise UserError(
                f"--study: {self.path}: cannot be written to: {error.strerror}"
            ) from None

    def write_trials(self, plan: Plan, rows: Sequence[Mapping[str, object]]) -> Study:
        """Write ``trials.csv``, a line for each trial that ended; return what it says."""
        table = pd.DataFrame(rows, columns=[*COLUMNS, *plan.keys, "reason"], dtype=object)
        text = table.to_csv(index=False, lineterminator="\n")
        write_atomically(self.path / TRIALS, text.encode())
        return read_study(self.path)

    def write_best(self, study: Study, chosen: Mapping[str, float]) -> None:
        """Write ``best.yaml``: the recipe with the chosen values, and where they come from.

        It runs as the recipe did: on all training images, and tested on the test images.
        """
        plan = study.plan
        recipe = load_recipe(self.base, [f"train_args.{k}={v!r}" for k, v in chosen.items()])
        lines = [
            f"Recipe {plan.recipe} with the values that fednnnn tune chose.",
            f"Judged by {plan.metric} on {plan.validation:.4g} of the training images, held out; "
            "the test images were not looked at.",
            f"Early stopping of hopeless trials: {'on' if plan.prune else 'off'}.",
            *(line for step in plan.steps for line in _provenance(study, step)),
            ", ".join(f"{package} {number}" for package, number in versions().items()),
        ]
        comments = "".join(f"# {line}\n" for line in lines)
        write_atomically(self.best, (comments + dump_recipe(recipe)).encode())


def _provenance(study: Study, step: Step) -> list[str]:
    """What was searched in a step, how many points have a result, and which is best."""
    grid = "; ".join(
        f"{key} in {', '.join(f'{value:g}' for value in values)}"
        for key, values in step.grid.items()
    )
    states = study.of(step)["state"].value_counts()
    counts = ", ".join(f"{count} {state}" for state, count in states.items())
    best = study.best(step)
    assert best is not None
    values = ", ".join(f"{key} {best[key]:g}" for key in step.grid)
    return [
        f"{step.name}: {step.method}, {step.rounds} rounds: {grid}",
        f"  {states.sum()} of {len(step)} points have a result: {counts}",
        f"  best: {values}: {study.plan.metric} {best['value']:.4f}",
    ]
