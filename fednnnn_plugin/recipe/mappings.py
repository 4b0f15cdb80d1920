"""The keys of a recipe whose value is a mapping, with keys of its own."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fednnnn_plugin.errors import did_you_mean, shown
from fednnnn_plugin.server.rules import Key, non_negative

MOST = 2**31 - 1


class Part(NamedTuple):
    """A key of a mapping: which values it takes, and in which words."""

    takes: Callable[[Any], bool]
    allowed: str


def whole(least: int) -> Part:
    """Return a part for whole numbers from the least one on."""

    def takes(value: Any) -> bool:
        return type(value) is int and least <= value <= MOST

    return Part(takes, f"a whole number of {least} to {MOST}")


def number(key: Key) -> Part:
    """Return a part for the numbers of a key's range."""
    return Part(key.check, key.allowed)


def _is_finite(value: Any) -> bool:
    key = non_negative()
    return type(value) in (int, float) and key.check(abs(value))


FINITE = Part(_is_finite, "a finite number")
TEXT = Part(lambda value: isinstance(value, str) and bool(value), "text")


def check_parts(given: Mapping[str, object], parts: Mapping[str, Part]) -> None:
    """Refuse a key that a mapping does not have, or a value out of its range."""
    for key, value in given.items():
        if key not in parts:
            hint = did_you_mean(key, parts)
            raise ValueError(f"{shown(key)} is none of its keys: {', '.join(parts)}{hint}")
        if not parts[key].takes(value):
            raise ValueError(f"{key}: {shown(value)}: must be {parts[key].allowed}")


_STOP = {
    "metric": TEXT,
    "target": FINITE,
    "patience": whole(1),
    "min_delta": number(non_negative()),
}


def check_stop(given: dict[str, Any]) -> dict[str, Any]:
    """Check when a run is to end before its last round."""
    check_parts(given, _STOP)
    if not given.keys() & {"target", "patience"}:
        raise ValueError("must have a target, or a patience in rounds")
    if "min_delta" in given and "patience" not in given:
        raise ValueError("min_delta: only patience uses it; leave it out")
    return given
