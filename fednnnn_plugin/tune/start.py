"""The beginning of a search: what is refused before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fednnnn_plugin.data.federated import load_federated
from fednnnn_plugin.engine.settings import data_spec
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.recipe import Recipe, differences, load_recipe
from fednnnn_plugin.report.study import Plan, is_study, read_plan
from fednnnn_plugin.tune.folder import StudyFolder
from fednnnn_plugin.tune.plan import make_plan, trial_recipe
from fednnnn_plugin.tune.settings import Settings, settings_of


def begin_study(
    folder: StudyFolder, path: Path, overrides: Sequence[str], given: Settings, *, allow_code: bool
) -> None:
    """Begin a study of the recipe in ``path``, unless any part of it cannot be."""
    where = f"--study: {folder.path}"
    recipe = load_recipe(path, overrides)
    plan = make_plan(recipe, given)
    try:
        if is_study(folder.path):
            raise UserError(f"{where}: it holds a study; go on with --resume, or choose another")
        if folder.path.exists() and any(folder.path.iterdir()):
            raise UserError(f"{where}: not empty, and not a study")
        _check_data(_recipes(path, overrides, plan), allow_code=allow_code)
        folder.write_plan(recipe, plan)
    except OSError as error:
        raise UserError(f"{where}: cannot be used: {error.strerror}") from None


def check_study(folder: StudyFolder, path: Path, overrides: Sequence[str], given: Settings) -> None:
    """Refuse to go on with another recipe or other settings than the study's."""
    recipe = load_recipe(path, overrides)
    stored = settings_of(read_plan(folder.path))
    wanted = settings_of(make_plan(recipe, stored.updated(given)))
    changed = differences(load_recipe(folder.base), recipe)
    changed |= {key: (getattr(stored, key), value) for key, value in wanted}
    lines = [
        f"--resume: {key}: {after}: the study in {folder.path} has {before}"
        for key, (before, after) in changed.items()
        if before != after
    ]
    if lines:
        raise UserError("\n".join(lines))


def _recipes(path: Path, overrides: Sequence[str], plan: Plan) -> dict[str, Recipe]:
    """Return a recipe of each step; refuse a grid with a value that the recipe does not take."""
    recipes: dict[str, Recipe] = {}
    lines: list[str] = []
    for step in plan.steps:
        for point in step.points():
            try:
                recipes[step.name] = trial_recipe(path, plan, step, point, overrides)
            except UserError as error:
                lines += str(error).replace("--set train_args.", "--grid ").splitlines()
    if lines:
        raise UserError("\n".join(dict.fromkeys(lines)))
    return recipes


def _check_data(recipes: dict[str, Recipe], *, allow_code: bool) -> None:
    """Refuse data that cannot be divided as a step needs it, by dividing it."""
    found = reversed(recipes.items())  # of equal data the first step is named
    specs = {data_spec(recipe, allow_code=allow_code): step for step, recipe in found}
    for spec, step in specs.items():
        try:
            load_federated(spec)
        except UserError as error:
            where = f"{step} ({spec.partition_method}, {spec.partition_sizes} clients)"
            lines = str(error).splitlines()
            raise UserError("\n".join(f"{where}: {line}" for line in lines)) from None
