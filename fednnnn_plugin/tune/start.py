"""The beginning of a search: what is refused before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fednnnn_plugin.engine.launch import data_spec, load_data
from fednnnn_plugin.engine.ranks import Solo
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.recipe import differences, load_recipe
from fednnnn_plugin.report.study import Plan, read_plan
from fednnnn_plugin.tune.folder import StudyFolder
from fednnnn_plugin.tune.plan import make_plan, trial_recipe
from fednnnn_plugin.tune.settings import Settings


def begin_study(
    folder: StudyFolder, path: Path, overrides: Sequence[str], given: Settings, *, allow_code: bool
) -> None:
    """Begin a study.

    Args:
        folder: the study's.
        path: the recipe's file.
        overrides: of its keys.
        given: what was said of the search.
        allow_code: the user lets the recipe's own code run.

    Raises:
        UserError: a mistake in the recipe or the settings, data that cannot be loaded or divided
            as a step needs it, or a folder that holds anything; nothing is written then.
    """
    recipe = load_recipe(path, overrides)
    folder.refuse_what_is_there()
    plan = make_plan(recipe, given)
    _check_values(path, overrides, plan)
    _check_data(path, overrides, plan, allow_code=allow_code)
    folder.begin(recipe, plan)


def check_study(folder: StudyFolder, path: Path, overrides: Sequence[str], given: Settings) -> None:
    """Make sure that the study that is there is the one that is asked for.

    Args:
        folder: the study's.
        path: the recipe's file.
        overrides: of its keys.
        given: what was said of the search; what was not is the study's.

    Raises:
        UserError: a line for each key that differs.
    """
    changed = differences(load_recipe(folder.base), load_recipe(path, overrides))
    lines = [f"{key}: {new}: the study has {old}" for key, (old, new) in changed.items()]
    lines += given.differences(read_plan(folder.path))
    if lines:
        raise UserError("\n".join(f"--resume: {folder.path}: {line}" for line in lines))


def _check_values(path: Path, overrides: Sequence[str], plan: Plan) -> None:
    """Refuse a grid with a value that the recipe does not take: a line for each."""
    lines: list[str] = []
    for step in plan.steps:
        first = next(step.points())
        for key, values in step.grid.items():
            for value in values:
                try:
                    trial_recipe(path, plan, step, {**first, key: value}, overrides)
                except UserError as error:
                    lines += str(error).replace("--set train_args.", "--grid ").splitlines()
    if lines:
        raise UserError("\n".join(dict.fromkeys(lines)))


def _check_data(path: Path, overrides: Sequence[str], plan: Plan, *, allow_code: bool) -> None:
    """Refuse data that cannot be divided as a step needs it, by dividing it."""
    recipes = [trial_recipe(path, plan, s, next(s.points()), overrides) for s in plan.steps]
    specs = [data_spec(recipe, allow_code=allow_code) for recipe in recipes]
    for index, (step, recipe) in enumerate(zip(plan.steps, recipes, strict=True)):
        if specs[index] in specs[:index]:
            continue
        try:
            load_data(recipe, Solo(), allow_code=allow_code)
        except UserError as error:
            data = recipe.data_args
            where = f"{step.name} ({data.partition_method}, {data.partition_sizes} clients)"
            lines = str(error).splitlines()
            raise UserError("\n".join(f"{where}: {line}" for line in lines)) from None
