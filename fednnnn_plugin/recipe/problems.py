"""Validation errors as lines: where, key, value, what is allowed."""

import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.recipe.schema import SECTIONS, Recipe
from fednnnn_plugin.recipe.wording import printable, shown

MAX_LINES = 20

Origin = Callable[[str], str]
"""Where a key's value comes from: maps ``section.key`` to the text that starts its line."""


def build(values: Mapping[str, object], origin: Origin, context: dict[str, bool]) -> Recipe:
    """Validate ``values`` (``name`` and the sections).

    Raises:
        UserError: a line for each problem, ``origin(section.key): value: what is allowed``.
    """
    try:
        return Recipe.model_validate(values, context=context)
    except ValidationError as error:
        lines = [line for entry in error.errors(include_url=False) for line in _lines(entry)]
        raise UserError(joined([origin(key) + text for key, text in lines])) from None


def joined(lines: list[str]) -> str:
    """The lines of one message; the first `MAX_LINES` of them where there are more."""
    lines = list(dict.fromkeys(lines))
    rest = len(lines) - MAX_LINES
    return "\n".join(lines[:MAX_LINES] + ([f"... and {rest} more"] if rest > 0 else []))


def unknown_key(section: str, key: str) -> str:
    """Say that ``section.key`` is unknown, and name the nearest known key."""
    homes = [name for name, model in SECTIONS.items() if key in model.model_fields]
    if homes:
        return f"unknown key there; it belongs to {homes[0]}"
    wanted = printable(key[:40])
    own = list(SECTIONS[section].model_fields) if section in SECTIONS else []
    if near := difflib.get_close_matches(wanted, own, n=1, cutoff=0.6):
        return f"unknown key; did you mean {section}.{near[0]}?"
    known = {key: name for name, model in SECTIONS.items() for key in model.model_fields}
    nearest = difflib.get_close_matches(wanted, known, n=1, cutoff=0.0)[0]
    return f"unknown key; the nearest known one is {known[nearest]}.{nearest}"


def unknown_section(section: str) -> str:
    """Say that there is no such section, and name the nearest one."""
    for name, model in SECTIONS.items():
        if section in model.model_fields:
            return f"not a section; it is a key of {name}"
    nearest = difflib.get_close_matches(section[:40], SECTIONS, n=1, cutoff=0.0)[0]
    return f"unknown section; the nearest known one is {nearest}"


def _lines(entry: Any) -> Iterator[tuple[str, str]]:
    """The lines of one pydantic error, as (section.key, text)."""
    if entry["type"] == "consistency":
        for section, key, value, text in entry["ctx"]["problems"]:
            shown_value = "" if value is None else f"{shown(value)}: "
            yield f"{section}.{key}", f": {shown_value}{text}"
        return
    section, *rest = (str(part) for part in entry["loc"])
    if not rest:
        yield printable(section), f": {_section_text(section, entry)}"
        return
    key = rest[0]
    where = f"{section}.{printable(key)}"
    if entry["type"] == "extra_forbidden":
        yield where, f": {unknown_key(section, key)}"
        return
    allowed = SECTIONS[section].model_fields[key].description
    if entry["type"] == "unknown_name":
        yield where, f": {shown(entry['input'])}: {entry['ctx']['text']}"
    elif entry["type"] == "missing":
        yield where, f": missing; must be {allowed}"
    else:
        # In a union each member reports: the key's value is the same, so the lines are too.
        yield where, f": {shown(entry['input'])}: must be {allowed}"


def _section_text(section: str, entry: Any) -> str:
    if entry["type"] == "missing":
        return "missing section"
    if entry["type"] == "extra_forbidden":
        return unknown_section(section)
    return f"{shown(entry['input'])}: must be a section, a mapping of keys to values"
