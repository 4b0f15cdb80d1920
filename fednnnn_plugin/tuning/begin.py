"""The beginning of a search: what is refused before anything is written."""

from math import ceil
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import Parameter

from fednnnn_plugin.assembly.functions import find_functions
from fednnnn_plugin.assembly.inputs import recipe_data
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.data.images import are_classes
from fednnnn_plugin.data.own_data import DATA
from fednnnn_plugin.data.partition import partition, partition_name
from fednnnn_plugin.data.spec import DataSpec
from fednnnn_plugin.errors import OVERRIDES, RESUME, RunError, UserError, UserErrors, options_named
from fednnnn_plugin.models import MODEL
from fednnnn_plugin.processes.ranks import Ranks
from fednnnn_plugin.recipe import Recipe, differences
from fednnnn_plugin.recipe.data_spec import data_spec
from fednnnn_plugin.reporting.study import Plan, Step, is_study, read_plan
from fednnnn_plugin.rounds.evaluation import higher_is_better
from fednnnn_plugin.rounds.loaders import LoaderData
from fednnnn_plugin.run_folder.folder import RunFolder
from fednnnn_plugin.run_folder.records import Summary
from fednnnn_plugin.seeds import isolated_generators
from fednnnn_plugin.tuning.options import (
    GRID,
    LEARNING_RATE_STEP,
    METRIC,
    STUDY,
    Options,
    options_of,
)
from fednnnn_plugin.tuning.plan import Load, Measure, divided_already, make_plan, trial_recipes
from fednnnn_plugin.tuning.study_folder import StudyFolder, shown_values
from fednnnn_plugin.tuning.trial import check_trial
from fednnnn_plugin.user_code import find_code, is_own


def begin_study(folder: StudyFolder, load: Load, given: Options) -> None:
    """Begin a study of a recipe, unless a trial of it cannot be run."""
    recipe, objects = load([]), folder.objects
    functions = find_functions(folder.located(recipe), objects)
    if is_own(model := recipe.model_args.model):
        find_code(MODEL, model, objects.get(MODEL), allow_code=recipe.allow_code)
    metrics = functions.metrics.items()
    first = next((Measure(name, not higher_is_better(metric)) for name, metric in metrics), None)
    plan = make_plan(recipe, given, first)
    where = f"{STUDY}: {folder.path}"
    if is_study(folder.path):
        raise UserError(where, "it holds a study", f"continue with {RESUME}, or choose another")
    if folder.path.exists() and (not folder.path.is_dir() or folder.has_others_files()):
        raise UserError(where, "not empty, and not a study")
    if plan.steps[0].name == LEARNING_RATE_STEP:
        classes = _classes_per_client(load, plan, folder)
        plan = plan.model_copy(update={"classes_per_client": classes})
    labels = _check_trials(load, plan, folder)
    of_numbers = labels.is_floating_point() or recipe.train_args.loss == "mse"
    if plan.of_accuracy and of_numbers:
        if given.metric:
            raise UserError(
                f"{METRIC} {given.metric}",
                "labels that are numbers have no accuracy",
                f"choose {METRIC} final_loss",
            )
        plan = plan.model_copy(update={"metric": "final_loss"})
    try:
        folder.write_plan(recipe, plan)
    except OSError as error:
        raise UserError(where, f"cannot be written to: {error.strerror}") from None
    check_study(folder, load, given)  # it may be another process's


def check_study(folder: StudyFolder, load: Load, given: Options) -> None:
    """Refuse to continue with another recipe, other settings, code or data than the study's."""
    plan = read_plan(folder.path)
    stored = options_of(plan).planned
    changed = differences(folder.load([]), load([]))
    changed |= {key: (stored.get(key), value) for key, value in given.planned.items()}
    differing = [
        UserError(RESUME, f"{key}: {after}", f"the study in {folder.path} has {before}")
        for key, (before, after) in changed.items()
        if before != after
    ]
    if differing:
        raise UserErrors(differing)
    for step in plan.steps:
        trials = (folder.trial(step, point) for point in step.points())
        runs = ([trial / name for name in plan.run_folders] for trial in trials)
        for run in next((each for each in runs if all(_has_ended(run, step) for run in each)), []):
            check_trial(folder, step, run)


def _has_ended(run: Path, step: Step) -> bool:
    """Tell whether a trial's run has all its rounds or was stopped by its recipe.

    Another process may be running one that has not. One that failed or was pruned has no result
    with which later trials are compared.
    """
    summary = Summary.read(RunFolder(run).summary)
    return summary is not None and (summary.stopped is not None or summary.rounds >= step.rounds)


def _classes_per_client(load: Load, plan: Plan, folder: StudyFolder) -> int:
    """Return how many classes a client holds where η is chosen: two, if that covers all classes.

    Else so many that each class has about two clients.
    """
    recipe = load([f"data_args.validation_fraction={plan.validation}"])
    dealt = {"partition_method": "iid", "partition_sizes": "balanced"}
    data_args = recipe.data_args.model_copy(update=dealt)
    data = _data(recipe.model_copy(update={"data_args": data_args}), folder)
    if isinstance(data, LoaderData) or "split" in data.fingerprint:
        raise divided_already()
    clients, classes = data.num_clients, data.num_classes
    if not are_classes(data.train_labels):
        return 2
    seed = recipe.common_args.random_seed
    try:
        partition(data.train_labels.numpy(), clients, method="n_class", seed=seed)
    except UserError:
        return max(2, min(classes, 2 * ceil(classes / clients)))
    return 2


def _data(recipe: Recipe, folder: StudyFolder) -> FederatedData | LoaderData:
    return recipe_data(folder.located(recipe), Ranks(), folder.objects.get(DATA))[0]


def _check_trials(load: Load, plan: Plan, folder: StudyFolder) -> Tensor:
    """Refuse values that the recipe does not take, and data that no step can be run on.

    Returns labels that the trials train on; of Datasets, those of a batch.
    """
    problems: list[UserError] = []
    specs: dict[DataSpec, tuple[str, Recipe]] = {}
    for step in plan.steps:
        for point in step.points():
            try:
                with options_named({OVERRIDES: str(GRID)}.get):
                    recipes = trial_recipes(load, plan, step, point).values()
                for recipe in recipes:
                    specs.setdefault(data_spec(recipe), (step.name, recipe))
            except UserError as error:
                problems.append(error)
                continue
            try:
                with isolated_generators(recipe.common_args.random_seed, "rule check"):
                    recipe.rule.make([Parameter(torch.zeros(1))], recipe.rule_settings)
            except (UserError, RunError) as error:  # a custom rule
                problems.append(UserError(f"{GRID} {shown_values(point)}", error))
    for spec, (name, recipe) in {} if problems else specs.items():
        where = f"{name} ({partition_name(spec.partition_method, spec.partition_sizes)} clients)"
        try:
            labels = _labels(_data(recipe, folder))
        except UserError as error:
            problems += [UserError(where, each) for each in error.each]
    if problems:
        raise UserErrors(problems)
    return labels


def _labels(data: FederatedData | LoaderData) -> Tensor:
    if isinstance(data, FederatedData):
        return data.train_labels
    labels: Tensor = next(iter(data.test_loader))[1]
    return labels
