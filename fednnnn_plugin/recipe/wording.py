"""How a user's text and values appear in a one-line message."""

_LONGEST = 60


def printable(text: str) -> str:
    """``text`` on one line: control characters escaped, the end cut off where it is long."""
    shown = text if len(text) <= 4 * _LONGEST else text[: 4 * _LONGEST] + "…"
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in shown)


def shown(value: object) -> str:
    """A value as YAML would have it, or its kind where that would be long."""
    match value:
        case None:
            text = "null"
        case bool():
            text = str(value).lower()
        case int():
            text = str(value) if value.bit_length() <= 64 else "a huge number"
        case float():
            text = repr(value)
        case str():
            text = repr(value if len(value) <= _LONGEST else value[:_LONGEST] + "…")
        case dict():
            text = "a mapping"
        case list() | tuple():
            text = "a list"
        case _:
            text = f"a {type(value).__name__}"
    return text
