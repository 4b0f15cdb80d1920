"""A recipe file to a `Recipe`, and back."""

from collections.abc import Sequence
from pathlib import Path

import yaml

from fednnnn_plugin.errors import UserError, printable
from fednnnn_plugin.recipe.build import build, sections_of, unknown_section
from fednnnn_plugin.recipe.kinds import Caller
from fednnnn_plugin.recipe.reading import NotReadableError, read_file, read_yaml
from fednnnn_plugin.recipe.schema import SECTIONS, Recipe
from fednnnn_plugin.recipe.wording import joined, shown

# Access keys, as run folders are shared; and what says where a run goes, not what it is.
_UNSTORED = {"wandb_key", "mlops_api_key", "overwrite", "resume"}


def load_recipe(
    path: Path,
    overrides: Sequence[str] = (),
    *,
    foreign: bool = False,
    allow_code: bool = False,
) -> Recipe:
    """Load and validate a recipe.

    Args:
        path: a YAML file with the sections that FedML has.
        overrides: ``section.key=value``, or ``key=value`` of a key that one section alone has;
            the value is YAML. They replace the file's values.
        foreign: take names of data, models and platforms that are not ours, as the run folder of
            an entry script may hold them.
        allow_code: import a ``federated_optimizer`` that is ``module:Class``.

    Raises:
        UserError: a line for each problem: file, key, value, what is allowed.
    """
    where = printable(path)
    try:
        values = read_yaml(read_file(path))
    except NotReadableError as error:
        raise UserError(f"{where}: {error}") from None
    if not isinstance(values, dict):
        what = "empty" if values is None else shown(values)
        raise UserError(f"{where}: {what}; a recipe is a mapping of sections such as train_args")
    if "name" in values:
        raise UserError(f"{where}: name: {unknown_section('name')}; a recipe has its file's name")
    values.setdefault("environment_args", {})  # the one section that a file may leave out
    overridden = _override(values, overrides)

    def place(key: str) -> str:
        return f"{'--set' if key in overridden else f'{where}:'} {printable(key)}"

    caller = Caller(place, foreign=foreign, custom_trainer=foreign, allow_code=allow_code)
    return build({"name": path.stem, **values}, caller)


def dump_recipe(recipe: Recipe) -> str:
    """The resolved recipe as YAML that `load_recipe` reads back.

    Defaults are written out; keys that are null are written only where the recipe names them.
    Access keys are left out, as run folders are shared, and so are ``overwrite`` and ``resume``.
    """
    # Escaped to ASCII: PyYAML writes a bare U+0085 that it then reads as another character.
    text: str = yaml.safe_dump(_resolved(recipe), sort_keys=False)
    return text


def differences(stored: Recipe, given: Recipe) -> dict[str, tuple[object, object]]:
    """The keys whose values differ: ``section.key`` to the stored and the given value.

    The names, and what no run folder stores, are not compared.
    """
    before, after = (
        {
            f"{section}.{key}": value
            for section, keys in found.items()
            for key, value in keys.items()
        }
        for found in (_resolved(stored), _resolved(given))
    )
    values = {key: (before.get(key), after.get(key)) for key in sorted(before | after)}
    return {key: (one, other) for key, (one, other) in values.items() if one != other}


def _resolved(recipe: Recipe) -> dict[str, dict[str, object]]:
    """The sections that a run folder stores, the rule's keys among the others."""
    resolved: dict[str, dict[str, object]] = {}
    for name in SECTIONS:
        section = getattr(recipe, name)
        keys = resolved[name] = {}
        for key, value in section.model_dump().items():
            if key == "rule_settings":
                keys.update(value)
            elif key not in _UNSTORED and (value is not None or key in section.model_fields_set):
                keys[key] = value
    return {name: keys for name, keys in resolved.items() if keys}


def _override(values: dict[str, object], overrides: Sequence[str]) -> set[str]:
    """Apply the overrides to ``values`` in place; return the ``section.key`` of each."""
    problems: list[str] = []
    applied: set[str] = set()
    for override in overrides:
        target, equals, text = override.partition("=")
        try:
            section, key = _target(target.strip(), given=bool(equals))
            value = read_yaml(text)
        except NotReadableError as error:
            problems.append(f"--set {printable(override)}: {error}")
            continue
        keys = values.get(section)
        if isinstance(keys, dict):
            keys[key] = value
            applied.add(f"{section}.{key}")
    if problems:
        raise UserError(joined(problems))
    return applied


def _target(target: str, *, given: bool) -> tuple[str, str]:
    """The section and the key that an override means; a key of one section needs no section."""
    section, dot, key = target.partition(".")
    homes = sections_of(target)
    if not (given and target) or target in SECTIONS or len(homes) > 1:
        forms = [f"{home}.{target}=VALUE" for home in homes]
        raise NotReadableError(f"write {' or '.join(forms) or 'KEY=VALUE, as in beta=0.7'}")
    if not dot:  # what no section has may be a key of the user's own rule
        return (homes or ["train_args"])[0], target
    if section not in SECTIONS:
        raise NotReadableError(unknown_section(section))
    return section, key
