"""Values to a `Recipe`, or a line for each that is wrong: where, key, value, what is allowed."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from fednnnn_plugin.errors import UserError, printable
from fednnnn_plugin.recipe.consistency import inconsistencies
from fednnnn_plugin.recipe.keys import unknown_key, unknown_section
from fednnnn_plugin.recipe.method import KEY as METHOD
from fednnnn_plugin.recipe.method import methods
from fednnnn_plugin.recipe.schema import SECTIONS, Recipe
from fednnnn_plugin.recipe.values import LARGEST, Caller
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
    except ValidationError as error:
        entries = error.errors(include_url=False)
        raise UserError(joined(line for e in entries for line in _lines(e, caller))) from None
    problems = inconsistencies(recipe, foreign=caller.foreign)
    if problems:
        raise UserError(joined(f"{caller.where(key)}: {text}" for key, text in problems))
    return recipe


def _lines(entry: Any, caller: Caller) -> Iterator[str]:
    """The lines of one pydantic error."""
    section, *rest = (str(part) for part in entry["loc"])
    if not rest:
        yield f"{caller.where(printable(section))}: {_section_text(section, entry)}"
    elif entry["type"] == "lines":
        yield from entry["ctx"]["lines"].splitlines()
    elif entry["type"] == "problems":
        for key, text in entry["ctx"]["problems"]:
            said = text or unknown_key(*key.split(".", 1))
            yield f"{caller.where(printable(key))}: {said}"
    else:
        where = caller.where(f"{section}.{printable(rest[0])}")
        yield f"{where}: {_text(section, rest[0], entry)}"


def _section_text(section: str, entry: Any) -> str:
    if entry["type"] == "missing":
        return "missing section"
    if entry["type"] == "extra_forbidden":
        return unknown_section(section)
    return f"{shown(entry['input'])}: must be a section, a mapping of keys to values"


def _text(section: str, key: str, entry: Any) -> str:
    if entry["type"] == "extra_forbidden":
        return unknown_key(section, key)
    if entry["type"] == "refused":
        return f"{shown(entry['input'])}: {entry['ctx']['text']}"
    schema = SECTIONS[section].model_json_schema()["properties"][key]
    allowed = methods() if f"{section}.{key}" == METHOD else _words(schema)
    if entry["type"] == "missing":
        return f"missing; must be {allowed}"
    # In a union each member reports: the key's value is the same, so the lines are too.
    return f"{shown(entry['input'])}: must be {allowed}"


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
        words = (
            f"a finite number {least}" if high is None else f"a number {least} and less than {high}"
        )
    else:
        words = schema.get("const") or _SIMPLE[schema["type"]]
    return words
