"""A hyperparameter search, from Python and from the command alike."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from fednnnn_plugin.engine.endings import launched_ranks
from fednnnn_plugin.engine.start import IN_PYTHON
from fednnnn_plugin.errors import UserError, in_words
from fednnnn_plugin.recipe import Recipe, find_recipe, load_recipe
from fednnnn_plugin.report.study import is_study, read_plan
from fednnnn_plugin.tune.begin import begin_study, check_study
from fednnnn_plugin.tune.options import Options, checked_options
from fednnnn_plugin.tune.parallel import search
from fednnnn_plugin.tune.plan import described
from fednnnn_plugin.tune.study_folder import StudyFolder, shown_values

_log = logging.getLogger(__name__)
Say = Callable[[str], None]
_WORDS = {f"--{name.replace('_', '-')}": name for name in Options.model_fields} | IN_PYTHON


@dataclass(frozen=True)
class Tuning:
    """A search that has ended.

    Attributes:
        folder: the study folder.
        best: the chosen value of each key that was searched.
        recipe: ``best.yaml``, the recipe with these values.
        trials: a row for each trial: its step, method and values, ``state``, ``value``, what it
            is judged by, and ``best_accuracy``, ``final_accuracy``, ``final_loss``.
    """

    folder: Path
    best: dict[str, float]
    recipe: Path
    trials: pd.DataFrame


def tune(
    recipe: Path | str,
    *,
    grid: Mapping[str, str | Sequence[float]] | None = None,
    overrides: Mapping[str, object] | Sequence[str] | None = None,
    rounds: int | None = None,
    validation: float | None = None,
    metric: str | None = None,
    seeds: str | Sequence[int] | None = None,
    paper: bool | None = None,
    prune: bool | None = None,
    study: Path | str | None = None,
    jobs: int = 1,
    resume: bool = False,
    allow_code: bool = False,
) -> Tuning:
    """Find a recipe's hyperparameters by grid search, like the command ``fednnnn tune``.

    Each trial that ends is logged at level INFO.

    Args:
        recipe: a path, or the name of a recipe that comes with the package.
        grid: the values to search, by key of ``train_args``: numbers, or ``"START:STOP:STEP"`` with
            both ends. Only what is named is searched; by default η and the method's keys. Without
            the paper's procedure there is no default.
        overrides: as for :func:`~fednnnn_plugin.run`.
        rounds: rounds of a trial; by default the paper's for the data, or the recipe's own
            without the paper's procedure.
        validation: share of the training samples to judge on; 1/6 by default.
        metric: ``"best_accuracy"`` (default), ``"final_accuracy"`` or ``"final_loss"`` (default
            where labels are numbers); where the recipe names metrics, ``"best_metric"`` (default
            then) or ``"final_metric"``, of the first.
        seeds: run each trial with each of these, and judge it by the mean; by default the
            recipe's seed alone.
        paper: follow the paper's procedure for a recipe of other data, network or deal, too.
        prune: stop trials that are far behind the others.
        study: the study folder; ``studies/<recipe>-seed<seed>`` by default.
        jobs: trials side by side. Above 1 a script needs ``if __name__ == "__main__":``.
        resume: continue the study in the folder; no finished trial is repeated.
        allow_code: allow a ``module:name`` in the recipe to run.

    Raises:
        UserError: a mistake in the recipe, the settings or the folder; nothing is written.
        RunError: no trial of a step finished.

    Example::

        found = fp.tune("digits_noniid_b_fednnnn", grid={"beta": [0.5, 0.7], "gamma": [0.8]})
        fp.run(found.recipe)
    """
    given = {
        "grid": grid,
        "rounds": rounds,
        "validation": validation,
        "metric": metric,
        "seeds": seeds,
        "paper": paper,
        "prune": prune,
        "overrides": overrides or (),
        "study": study,
        "jobs": jobs,
        "resume": resume,
        "allow_code": allow_code,
    }
    with in_words(_WORDS):
        return tune_recipe(recipe, given, say=_log.info, warn=_log.warning)


def tune_recipe(recipe: Path | str, given: Mapping[str, object], *, say: Say, warn: Say) -> Tuning:
    """Search as :func:`tune` does, by the options that are ``given``; messages are the command's.

    ``say`` takes a line for each trial that ends, and the outcome.
    """
    if launched_ranks() > 1:
        raise UserError("tune: start one process; --jobs N starts more, --resume joins a study")
    options, path = checked_options(given), find_recipe(str(recipe))

    def load(more: Sequence[str]) -> Recipe:
        return load_recipe(path, [*options.overrides, *more], allow_code=options.allow_code)

    loaded = load([])
    default = f"{loaded.name}-seed{loaded.common_args.random_seed}"
    study = options.study or Path("studies") / default
    folder = StudyFolder(study.expanduser(), allow_code=options.allow_code)
    if options.resume and is_study(folder.path):
        check_study(folder, load, options)
    else:
        begin_study(folder, load, options)
        if options.resume:
            say(f"{folder.path}: no study to resume: starting a new one")
    for key, asked in (
        ("tracking_args.enable_wandb", loaded.tracking_args.enable_wandb),
        ("common_args.using_mlops", loaded.common_args.using_mlops),
    ):
        if asked:
            warn(f"{key}: true: trials do not report; runs of best.yaml do")
    for line in described(folder.load, read_plan(folder.path)):
        say(line)
    found = search(folder, say, options.jobs)
    steps = found.plan.steps
    say(found.counts(steps))
    say(f"best: {', '.join(shown_values(found.chosen(step)) for step in steps)}")
    say(f"recipe: {folder.best}")
    best = {key: value for step in steps for key, value in found.chosen(step).items()}
    return Tuning(folder.path, best, folder.best, found.trials)
