"""Values to a `Recipe`, or a line for each that is wrong: where, key, value, what is allowed."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.recipe.consistency import inconsistencies
from fednnnn_plugin.recipe.kinds import LARGEST, Caller
from fednnnn_plugin.recipe.schema import SECTIONS, Recipe, own_keys
from fednnnn_plugin.recipe.wording import either, joined, shown

_SIMPLE = {
    "boolean": "true or false",
    "string": "text (quote what YAML reads otherwise)",
    "null": "null",
}


def build(values: Mapping[str, object], caller: Caller) -> Recipe:
    """Validate ``values`` (``name`` and the sections).

    Raises:
        UserError: a line for each problem, ``where(section.key): value: what is allowed``.
    """
    try:
        recipe = Recipe.model_validate(values, context=caller)
        problems = inconsistencies(recipe, foreign=caller.foreign)
    except ValidationError as error:
        problems = {}
        for entry in error.errors(include_url=False):
            problems |= _problems(entry)
    if problems:
        lines = [f"{caller.where(key)}: {text}" for key, text in problems.items()]
        raise UserError(joined(lines))
    return recipe


def sections_of(key: str) -> list[str]:
    """The sections that have a key: one; two for what FedML has in two; or none."""
    return [section for section in SECTIONS if key in _keys_of(section)]


def unknown_section(section: str) -> str:
    """Say that there is no such section, and name the nearest one."""
    if homes := sections_of(section):
        return f"not a section; it is a key of {homes[0]}"
    nearest = get_close_matches(section[:40], SECTIONS, n=1, cutoff=0.0)[0]
    return f"unknown section; the nearest known one is {nearest}"


def _unknown_key(key: str) -> str:
    if homes := sections_of(key):
        return f"unknown key there; it belongs to {homes[0]}"
    known = {key: name for name in SECTIONS for key in _keys_of(name)}
    nearest = get_close_matches(key[:40], known, n=1, cutoff=0.0)[0]
    return f"unknown key; did you mean {known[nearest]}.{nearest}?"


def _keys_of(section: str) -> list[str]:
    if section != "train_args":
        return own_keys(section)
    from fednnnn_plugin.server.rules import RULES

    return [*own_keys(section), *(key for rule in RULES.values() for key in rule.keys)]


def _problems(entry: Any) -> dict[str, str]:
    """What one pydantic error says of which key; in a union each member reports the same."""
    section, *rest = (str(part) for part in entry["loc"])
    kind, value = entry["type"], entry["input"]
    if kind == "refused":
        found: dict[str, str] = entry["ctx"]["problems"]
        return {key: text or _unknown_key(key.split(".", 1)[1]) for key, text in found.items()}
    if not rest:
        if kind == "extra_forbidden":
            return {section: unknown_section(section)}
        wrong = f"{shown(value)}: must be a section, a mapping of keys to values"
        return {section: "missing section" if kind == "missing" else wrong}
    key = f"{section}.{rest[0]}"
    if kind == "extra_forbidden":
        return {key: _unknown_key(rest[0])}
    schema = SECTIONS[section].model_json_schema()["properties"][rest[0]]
    given = "missing;" if kind == "missing" else f"{shown(value)}:"
    return {key: f"{given} must be {_words(schema)}"}


def _words(schema: Mapping[str, Any]) -> str:
    """What a JSON schema allows, as it follows "must be"."""
    if "description" in schema:
        words = schema["description"]
    elif "anyOf" in schema:
        words = ", or ".join(map(_words, schema["anyOf"]))
    elif "enum" in schema:
        words = either(schema["enum"])
    elif schema["type"] == "integer":
        high = schema["maximum"]
        most = f" and at most {high}" if high != LARGEST else ""
        words = f"a whole number of at least {schema['minimum']}{most}"
    elif schema["type"] == "number":
        low, high = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
        least = f"of at least {schema['minimum']}" if low is None else f"greater than {low}"
        finite, most = ("finite ", "") if high is None else ("", f" and less than {high}")
        words = f"a {finite}number {least}{most}"
    else:
        words = schema.get("const") or _SIMPLE[schema["type"]]
    return words
