"""A recipe file to a `Recipe`, and back."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fednnnn_plugin.client.methods import METHODS
from fednnnn_plugin.errors import OVERRIDES, UserError, UserErrors, printable
from fednnnn_plugin.reading import read_mapping, read_value, write_yaml
from fednnnn_plugin.recipe.kinds import Caller
from fednnnn_plugin.recipe.schema import FUNCTIONS, SECTIONS, Recipe, fixed_keys, own_keys
from fednnnn_plugin.recipe.validation import build, check_sections, known_keys, unknown_section
from fednnnn_plugin.server.rules import RULES
from fednnnn_plugin.user_code import is_own

_REQUIRED = {"data_args", "model_args", "train_args"}  # of the others all keys have defaults
# Access keys, as run folders are shared; and what says where a run goes or what is said of it, not
# what it is.
_UNSTORED = {
    "common_args.mlops_api_key",
    *(f"tracking_args.{key}" for key in ("wandb_key", "overwrite", "resume", "keep_states")),
    *(f"tracking_args.warn_{of}" for of in ("norm_ratio", "alignment", "weight_share")),
    *(f"comm_args.customized_training_{of}_config" for of in ("mqtt", "s3", "web3", "thetastore")),
}


def load_recipe(
    path: Path,
    overrides: Sequence[str] = (),
    *,
    foreign: bool = False,
    allow_code: bool = False,
    objects: Mapping[str, str | list[str]] = MappingProxyType({}),
    clients: int = 0,
) -> Recipe:
    """Load a recipe; a ``UserError`` has a line for each mistake: where, value, what is allowed.

    Overrides, ``section.key=value`` or ``key=value`` with a value in YAML, replace the file's.
    Where they, or ``objects``, name another rule or client method, the keys that the file has for
    its own alone are left out.
    ``foreign`` takes names that are not ours, as the run folder of an entry script may hold them.
    ``objects`` are the names of what the caller gave in the place of what the file names, by
    ``section.key``; what the file says to its functions is then not said. ``clients`` are those of
    a split that the caller gave: so many there are, unless an override says otherwise.
    """
    where = printable(path)
    sections: dict[str, Any] = {name: {} for name in SECTIONS if name not in _REQUIRED}
    sections |= read_mapping(path, "sections such as train_args")
    check_sections(sections, where)
    _move_using_mlops(sections)
    before = dict(sections["train_args"])
    _replace(sections, objects)
    overridden = _override(sections, overrides)
    if twice := overridden & objects.keys():
        raise UserErrors(
            UserError(f"{OVERRIDES} {key}", "an object was given for it") for key in sorted(twice)
        )
    if clients:
        _follow_split(sections, clients, overridden)

    def place(key: str) -> str:
        return f"{OVERRIDES if key in overridden else f'{where}:'} {printable(key)}"

    left = _left_behind(before, sections["train_args"])
    left = {key for key in left if f"train_args.{key}" not in overridden}
    caller = Caller(
        *(place, foreign, foreign, bool(allow_code)), frozenset(objects), frozenset(left)
    )
    return build(path.stem, sections, caller)


def overridden_keys(overrides: Sequence[str]) -> set[str]:
    """Return the ``section.key`` of each override."""
    return {".".join(_target(override.partition("=")[0].strip())) for override in overrides}


def dump_recipe(recipe: Recipe, label: str | None = None, *, own_data: bool = False) -> str:
    """The resolved recipe as YAML that `load_recipe` reads back, with the defaults written out.

    A ``label`` takes the place of the recipe's. Of ``own_data``, which the caller brought, nothing
    but the name is known.
    """
    sections: dict[str, dict[str, object]] = {}
    named = {"tracking_args.label": label} if label else {}
    for path, value in (resolved(recipe) | named).items():
        section, _, key = path.partition(".")
        sections.setdefault(section, {})[key] = value
    if own_data:
        sections["data_args"] = {"dataset": recipe.data_args.dataset}
    return write_yaml(sections)


def differences(stored: Recipe, given: Recipe) -> dict[str, tuple[object, object]]:
    """The stored and the given value of each ``section.key`` that a run folder stores otherwise."""
    before, after = resolved(stored), resolved(given)
    values = {key: (before.get(key), after.get(key)) for key in sorted(before | after)}
    return {
        key: (one, other)
        for key, (one, other) in values.items()
        if one != other and repr(one) != repr(other)  # no nan is equal to nan
    }


def resolved(recipe: Recipe) -> dict[str, object]:
    """What a run folder stores, by ``section.key``; nulls only where the recipe names them."""
    values: dict[str, object] = {}
    for name in SECTIONS:
        section = getattr(recipe, name)
        for key, value in section.model_dump().items():
            if value is not None or key in section.model_fields_set:
                values[f"{name}.{key}"] = value
    values |= {f"train_args.{key}": value for key, value in recipe.rule_settings.items()}
    return {key: value for key, value in values.items() if key not in _UNSTORED}


def _left_behind(before: Mapping[str, object], after: Mapping[str, object]) -> set[str]:
    """Return the keys of a file's rule and client method, where another has taken its place."""
    left = set[str]()
    for key, known in (("federated_optimizer", RULES), ("client_method", METHODS)):
        named = before.get(key)
        if named == after.get(key):
            continue
        if is_own(named):  # nobody knows its keys
            return {*before} - {*fixed_keys("train_args")}
        found = known.get(str(named))
        its = METHODS.get(str(getattr(found, "client_method", None)))
        left |= {key for each in (found, its) if each for key in each.keys}
    return left


def _replace(sections: dict[str, dict[str, Any]], objects: Mapping[str, str | list[str]]) -> None:
    """Put the names of objects in the place of the file's, and of their arguments."""
    for path, name in objects.items():
        section, _, key = path.partition(".")
        if section in FUNCTIONS:
            own = own_keys(section)
            sections[section] = {k: v for k, v in sections[section].items() if k in own}
        sections[section][key] = name


def _move_using_mlops(sections: Mapping[str, dict[str, Any]]) -> None:
    """Put it where FedML documents it; its examples have it in ``tracking_args``, which wins."""
    asked = sections["tracking_args"].pop("using_mlops", None)
    if asked is not None:
        sections["common_args"]["using_mlops"] = asked


def _override(sections: dict[str, dict[str, Any]], overrides: Sequence[str]) -> set[str]:
    """Apply the overrides to ``sections`` in place; return the ``section.key`` of each.

    A null takes a setting away, so that its default holds; what is no setting is for others to say.
    """
    problems: list[UserError] = []
    applied: set[str] = set()
    known = known_keys()
    for override in overrides:
        target, equals, text = override.partition("=")
        try:
            section, key = _target(target.strip() if equals else "")
            value = read_value(text)
        except UserError as error:
            problems.append(error.at(f"{OVERRIDES} {printable(override)}"))
            continue
        sections[section][key] = value
        if value is None and known.get(key) == section:
            del sections[section][key]
        applied.add(f"{section}.{key}")
    if problems:
        raise UserErrors(problems)
    return applied


def _follow_split(
    sections: Mapping[str, dict[str, Any]], clients: int, overridden: Collection[str]
) -> None:
    """Set the number of clients, and how many of them train in a round: all, if all of them do."""
    train, total, cohort = sections["train_args"], "client_num_in_total", "client_num_per_round"
    before = train.get(total)
    if f"train_args.{total}" not in overridden:
        train[total] = clients
    size, most = train.get(cohort), train.get(total)
    if f"train_args.{cohort}" not in overridden and isinstance(size, int) and isinstance(most, int):
        train[cohort] = most if size == before else min(size, most)


def _target(target: str) -> tuple[str, str]:
    """The section and the key that an override means; a key of one section needs no section."""
    section, dot, key = target.partition(".")
    if not target or target in SECTIONS:
        raise UserError(OVERRIDES, "write KEY=VALUE, as in beta=0.7")
    if not dot:  # what no section has may be a key of a custom rule
        return known_keys().get(target, "train_args"), target
    if section not in SECTIONS:
        raise UserError(OVERRIDES, unknown_section(section))
    return ("common_args" if key == "using_mlops" else section), key
