"""A recipe file to a `Recipe`, and back."""

from collections.abc import Sequence
from pathlib import Path

import yaml

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.recipe.problems import build, joined, unknown_key, unknown_section
from fednnnn_plugin.recipe.reading import NotReadableError, read_file, read_yaml
from fednnnn_plugin.recipe.schema import SECTIONS, Recipe
from fednnnn_plugin.recipe.values import CUSTOM_TRAINER, FOREIGN
from fednnnn_plugin.recipe.wording import printable, shown

_SECRETS = {"wandb_key", "mlops_api_key"}


def load_recipe(path: Path, overrides: Sequence[str] = (), *, foreign: bool = False) -> Recipe:
    """Load and validate a recipe.

    Args:
        path: a YAML file with the sections that FedML has.
        overrides: ``section.key=value``, the value in YAML; they replace the file's values.
        foreign: take names of data, models and platforms that are not ours, as the run folder of
            an entry script may hold them.

    Raises:
        UserError: a line for each problem: file, key, value, what is allowed.
    """
    where = printable(str(path))
    try:
        values = read_yaml(read_file(path))
    except NotReadableError as error:
        raise UserError(f"{where}: {error}") from None
    if not isinstance(values, dict):
        what = "empty" if values is None else shown(values)
        raise UserError(f"{where}: {what}; a recipe is a mapping of sections such as train_args")
    if "name" in values:
        raise UserError(f"{where}: name: {unknown_section('name')}; a recipe has its file's name")
    overridden = _override(values, overrides)

    def origin(key: str) -> str:
        return f"--set {key}" if key in overridden else f"{where}: {key}"

    context = {FOREIGN: foreign, CUSTOM_TRAINER: foreign}
    return build({"name": path.stem, **values}, origin, context)


def dump_recipe(recipe: Recipe) -> str:
    """The resolved recipe as YAML that `load_recipe` reads back.

    Defaults are written out; keys that are null are written only where the recipe names them.
    Access keys are left out: run folders are shared.
    """
    resolved: dict[str, dict[str, object]] = {}
    for name in SECTIONS:
        section = getattr(recipe, name)
        if section is None:
            continue
        resolved[name] = {
            key: value
            for key, value in section.model_dump().items()
            if key not in _SECRETS and (value is not None or key in section.model_fields_set)
        }
    # Escaped to ASCII: PyYAML writes a bare U+0085 that it then reads as another character.
    text: str = yaml.safe_dump(resolved, sort_keys=False)
    return text


def differences(stored: Recipe, given: Recipe) -> dict[str, tuple[object, object]]:
    """The keys whose values differ: ``section.key`` to the stored and the given value.

    The names and the access keys, which no run folder stores, are not compared.
    """
    found: dict[str, tuple[object, object]] = {}
    for name, model in SECTIONS.items():
        for key in model.model_fields.keys() - _SECRETS:
            values = (
                getattr(getattr(stored, name), key, None),
                getattr(getattr(given, name), key, None),
            )
            if values[0] != values[1]:
                found[f"{name}.{key}"] = values
    return dict(sorted(found.items()))


def _override(values: dict[str, object], overrides: Sequence[str]) -> set[str]:
    """Apply the overrides to ``values`` in place; return the ``section.key`` of each."""
    problems: list[str] = []
    applied: set[str] = set()
    for override in overrides:
        target, equals, text = override.partition("=")
        section, dot, key = target.strip().partition(".")
        problem = _target_problem(section, key) if equals and dot else _form(section)
        if problem:
            problems.append(f"--set {printable(override)}: {problem}")
            continue
        try:
            value = read_yaml(text)
        except NotReadableError as error:
            problems.append(f"--set {printable(override)}: {error}")
            continue
        if section == "environment_args":  # the one that a file may leave out
            values.setdefault(section, {})
        keys = values.get(section)
        if isinstance(keys, dict):
            keys[key] = value
            applied.add(f"{section}.{key}")
    if problems:
        raise UserError(joined(problems))
    return applied


def _target_problem(section: str, key: str) -> str:
    if section not in SECTIONS:
        return unknown_section(section)
    return "" if key in SECTIONS[section].model_fields else unknown_key(section, key)


def _form(word: str) -> str:
    for section, model in SECTIONS.items():
        if word in model.model_fields:
            return f"write {section}.{word}=VALUE"
    return "write SECTION.KEY=VALUE, as in train_args.beta=0.7"
