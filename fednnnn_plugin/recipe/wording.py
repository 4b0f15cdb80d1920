"""How a user's text and values appear in a one-line message."""

from collections.abc import Iterable, Sequence

from fednnnn_plugin.errors import printable

MAX_LINES = 20
_LONGEST = 60


def shown(value: object) -> str:
    """A value as YAML would have it, or its kind where that would be long."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return repr(value if len(value) <= _LONGEST else value[:_LONGEST] + "…")
    if isinstance(value, int | float):
        huge = isinstance(value, int) and value.bit_length() > 64
        return "a huge number" if huge else repr(value)
    kinds = {"dict": "mapping", "tuple": "list"}
    kind = printable(type(value).__name__)
    return f"a {kinds.get(kind, kind)}"


def either(names: Sequence[str]) -> str:
    """``a``, ``a or b``, or ``one of a, b, c``."""
    return " or ".join(names) if len(names) < 3 else f"one of {', '.join(names)}"


def joined(lines: Iterable[str]) -> str:
    """The lines of one message; the first `MAX_LINES` of them where there are more."""
    different = list(dict.fromkeys(lines))
    rest = len(different) - MAX_LINES
    return "\n".join(different[:MAX_LINES] + ([f"... and {rest} more"] if rest > 0 else []))
