"""A hyperparameter search, from Python and from the command alike."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pandas as pd
from typing_extensions import Unpack

from fednnnn_plugin.assembly.objects import (
    Objects,
    as_options,
    names_and_objects,
    registered,
)
from fednnnn_plugin.data.own_data import DATA
from fednnnn_plugin.data.own_forms import clients_of
from fednnnn_plugin.errors import RESUME, UserError, in_python, shown
from fednnnn_plugin.files import checked_path
from fednnnn_plugin.followers.progress import warnings_shown
from fednnnn_plugin.processes.devices import tensors_made_on_cpu
from fednnnn_plugin.processes.endings import launched_ranks
from fednnnn_plugin.recipe import Recipe, find_recipe, load_recipe
from fednnnn_plugin.reporting.study import is_study, read_plan
from fednnnn_plugin.tuning.begin import begin_study, check_study
from fednnnn_plugin.tuning.options import JOBS, STUDY, Options, checked_options
from fednnnn_plugin.tuning.parallel import search
from fednnnn_plugin.tuning.plan import described
from fednnnn_plugin.tuning.study_folder import StudyFolder, shown_values, without

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tuning:
    """A search that has ended.

    Attributes:
        folder: the study folder.
        best: the chosen value of each key that was searched.
        recipe: ``best.yaml``, the recipe with these values.
        trials: a row for each trial: ``step``, ``method``, ``state`` (``"finished"``, ``"pruned"``
            or ``"failed"``), ``value`` (of the metric that it is judged by), ``best_accuracy``,
            ``best_round``, ``final_accuracy``, ``final_loss``, ``rounds``, ``folder``, and the
            searched keys.
    """

    folder: Path
    best: dict[str, float]
    recipe: Path
    trials: pd.DataFrame


@in_python
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
    **objects: Unpack[Objects],
) -> Tuning:
    """Find a recipe's hyperparameters by grid search, like the command ``fednnnn tune``.

    Each trial that ends is logged at level INFO. A trial that was cut short is run anew.

    Args:
        recipe: a path, or the name of a recipe that comes with the package.
        grid: the values to search, by key of ``train_args``: numbers, ``"0.5,0.7"``, or
            ``"START:STOP:STEP"`` with both ends. Only these keys are searched. By default the
            learning rate, and those keys of the method that declare a ``grid``; without the paper's
            procedure there is no default.
        overrides: as for :func:`~fednnnn_plugin.run`.
        rounds: rounds of a trial, at least 1; by default 50 for MNIST and otherwise 30, and without
            the paper's procedure the recipe's ``comm_round``.
        validation: share of the training samples to hold out and judge on, in (0, 1); by default
            the recipe's ``validation_fraction``, or 1/6 where that is 0.
        metric: ``"best_accuracy"``, ``"final_accuracy"``, ``"final_loss"``, or ``"best_metric"`` or
            ``"final_metric"`` of the recipe's first metric, or ``"worst_10"``, the accuracy of the
            worst tenth of the clients after the last round, of a recipe with
            ``validation_args.per_client``. By default ``"best_metric"`` if the recipe names
            metrics, ``"final_loss"`` with the loss ``mse`` or ``bce_with_logits`` and where labels
            are numbers, else ``"best_accuracy"``.
        seeds: run each trial with each of these, and judge it by the mean; by default the
            recipe's seed alone.
        paper: follow the paper's procedure, or search all keys of the grid jointly. By default it
            is followed for ``mnist``, ``cifar10`` and ``digits`` with the package's network and an
            ``iid`` or ``n_class`` partition.
        prune: stop a trial whose best value so far is behind the median of the finished ones at the
            same round; after a third of the rounds, and once four trials have finished.
        study: the study folder; ``studies/<recipe>-seed<seed>`` by default.
        jobs: trials that run in parallel.
        resume: continue the study in the folder; no finished trial is repeated.
        allow_code: allow a ``module:name`` in the recipe to run.
        **objects: ``model``, ``data``, ``rule``, ``client_method``, ``loss``,
            ``client_optimizer``, ``metrics``, ``client_sampling``, ``client_availability``,
            ``train_transform``, ``learning_rate_schedule`` and ``stop``, as for
            :func:`~fednnnn_plugin.run`; data of which a part can be held out: not DataLoaders. With
            ``resume`` they must be those of the study, and with several ``jobs`` names.

    Raises:
        UserError: a mistake in the recipe, the settings or the folder; nothing is written.
        RunError: no trial of a step finished.

    Example::

        import fednnnn_plugin as fp

        found = fp.tune("digits_noniid_b_fednnnn", grid={"beta": [0.5, 0.7], "gamma": [0.8]})
        fp.run(found.recipe)
    """
    asked: dict[str, object] = {"grid": grid, "rounds": rounds, "validation": validation}
    asked |= {"metric": metric, "seeds": seeds, "paper": paper, "prune": prune}
    names, things = names_and_objects(objects)
    if type(jobs) is not int or jobs < 1:
        raise UserError(JOBS, shown(jobs), "must be a whole number of at least 1")
    return tune_recipe(
        recipe,
        checked_options(asked),
        overrides=[*names, *as_options(overrides or ())],
        study=None if study is None else checked_path(STUDY, study),
        jobs=jobs,
        resume=resume,
        allow_code=allow_code,
        objects=things,
        say=_log.info,
    )


@tensors_made_on_cpu()
def tune_recipe(
    recipe: Path | str,
    options: Options,
    *,
    say: Callable[[str], None],
    overrides: Sequence[str] = (),
    study: Path | None = None,
    jobs: int = 1,
    resume: bool = False,
    allow_code: bool = False,
    objects: Mapping[str, object] = MappingProxyType({}),
) -> Tuning:
    """Search as :func:`tune` does, by these options; messages are the command's.

    ``say`` takes a line for each trial that ends, and the outcome.
    """
    if launched_ranks() > 1:
        raise UserError("tune", f"start one process; {JOBS} starts more, {RESUME} joins a study")
    if objects and jobs > 1:
        raise UserError(
            JOBS,
            f"{jobs}: objects cannot be sent to other processes",
            "must be 1, or name them as module:name",
        )
    here = Path.cwd()  # which user code may change
    path = here / find_recipe(str(recipe))
    with registered(objects) as names, warnings_shown():

        def load(more: Sequence[str]) -> Recipe:
            return load_recipe(
                path,
                [*overrides, *more],
                allow_code=allow_code,
                objects=without(names, more),
                clients=clients_of(objects.get(DATA)),
            )

        loaded = load([])
        default = Path("studies") / f"{loaded.name}-seed{loaded.common_args.random_seed}"
        folder = StudyFolder(
            here / (study or default), here=here, allow_code=allow_code, objects=objects
        )
        if resume and is_study(folder.path):
            check_study(folder, load, options)
        else:
            begin_study(folder, load, options)
            if resume:
                say(f"{folder.path}: no study to resume: starting a new one")
        for key, is_asked in (
            ("tracking_args.enable_wandb", loaded.tracking_args.enable_wandb),
            ("common_args.using_mlops", loaded.common_args.using_mlops),
        ):
            if is_asked:
                _log.warning("%s: true: trials do not report; runs of best.yaml do", key)
        for line in described(folder.load, read_plan(folder.path)):
            say(line)
        found = search(folder, say, jobs)
    say(found.counts(found.plan.steps))
    say(f"best: {shown_values(found.choice)}")
    say(f"recipe: {folder.best}")
    return Tuning(folder.path, found.choice, folder.best, found.trials)
