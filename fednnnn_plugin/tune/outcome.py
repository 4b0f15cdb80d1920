"""What a search leaves behind: the table of its trials, and the recipe with the best values."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from fednnnn_plugin.engine.folder import write_atomically
from fednnnn_plugin.engine.records import versions
from fednnnn_plugin.recipe import dump_recipe, load_recipe
from fednnnn_plugin.tune.plan import Plan
from fednnnn_plugin.tune.search import Trial
from fednnnn_plugin.tune.study import StudyFolder

COLUMNS = (
    "step", "method", "state", "value", "best_accuracy", "best_round", "final_accuracy",
    "final_loss", "rounds", "folder",
)  # fmt: skip


def write_table(folder: StudyFolder, plan: Plan, trials: Sequence[Trial]) -> None:
    """Write ``trials.csv``: a line for each trial that ended, a column for each value searched."""
    keys = list(dict.fromkeys(key for step in plan.steps for key in step.grid))
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*COLUMNS, *keys])
    for trial in trials:
        result = trial.result
        figures = [
            result.value(plan.metric),
            result.best_accuracy,
            result.best_round,
            result.final_accuracy,
            result.final_loss,
            result.rounds,
        ]
        table.writerow(
            [trial.step.name, trial.step.method, result.state]
            + ["" if figure is None else figure for figure in figures]
            + [trial.folder.as_posix(), *(trial.point.get(key, "") for key in keys)]
        )
    write_atomically(folder.table, text.getvalue().encode())


def write_best(
    folder: StudyFolder, name: str, plan: Plan, chosen: Mapping[str, float], best: Sequence[Trial]
) -> Path:
    """Write ``best.yaml``: the recipe with the chosen values, and where they come from.

    It runs as the recipe did: on all training images, and tested on the test images.
    """
    overrides = [f"train_args.{key}={value!r}" for key, value in chosen.items()]
    recipe = load_recipe(folder.base, overrides)
    used = ", ".join(f"{package} {number}" for package, number in versions().items())
    lines = [
        f"Recipe {name} with the values that fednnnn tune chose.",
        f"Judged by {plan.metric} on {plan.validation:.4g} of the training images, held out; the "
        "test images were not looked at.",
        f"Early stopping of hopeless trials: {'on' if plan.prune else 'off'}.",
    ]
    for trial in best:
        grid = "; ".join(
            f"{key} in {', '.join(f'{value:g}' for value in values)}"
            for key, values in trial.step.grid.items()
        )
        values = ", ".join(f"{key} {value:g}" for key, value in trial.point.items())
        lines += [
            f"{trial.step.name}: {trial.step.method}, {trial.step.rounds} rounds, "
            f"{len(trial.step)} trials: {grid}",
            f"  best: {values}: {plan.metric} {trial.result.value(plan.metric):.4f}",
        ]
    lines.append(used)
    comments = "".join(f"# {line}\n" for line in lines)
    write_atomically(folder.best, (comments + dump_recipe(recipe)).encode())
    return folder.best
