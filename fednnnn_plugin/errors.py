"""The exception types, and how an error and a user's values are worded on one line."""

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches


class UserError(ValueError):
    """Bad input: each line of the message names what was given, where, and what is allowed.

    Commands print the message without a traceback and exit with status 2.
    """

    # It does not derive from KeyError: FedML re-raises that as a message about args.rank.


class StartError(UserError):
    """What a run does in each round fails before the first one; other settings may help."""


class RunError(RuntimeError):
    """A run that cannot continue, although its settings are right; the message is one line.

    Commands print it without a traceback and exit with status 1; the last finished round is
    saved.
    """


MAX_LINES = 20  # of a message
_LONGEST = 200  # characters of a long text's beginning, and of its end
_LONGEST_VALUE = 60


def escaped(text: object, kept: str = "") -> str:
    """Text with its unprintable characters escaped but those that are ``kept``."""
    return "".join(c if c.isprintable() or c in kept else repr(c)[1:-1] for c in str(text))


def printable(text: object) -> str:
    """Text on one line: unprintable characters escaped, the middle of a long one left out."""
    line = escaped(text)
    return line if len(line) <= 2 * _LONGEST else f"{line[:_LONGEST]}…{line[-_LONGEST:]}"


def reason(error: BaseException) -> str:
    """What an exception says, on one line, without a path that is said elsewhere."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__


def logged_message(record: logging.LogRecord) -> str:
    """The message of a log record, or why it has none: whoever made it, it ends no run."""
    try:
        return record.getMessage()
    except Exception as error:
        try:
            parts = f"{record.msg!r}, {record.args!r}"
        except Exception:
            parts = f"a {type(record.msg).__name__}"
        return printable(f"a message that cannot be formatted ({reason(error)}): {parts}")


def shown(value: object) -> str:
    """A value as YAML would have it, or its kind where that would be long."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        return repr(value if len(value) <= _LONGEST_VALUE else value[:_LONGEST_VALUE] + "…")
    if isinstance(value, int | float):
        huge = isinstance(value, int) and value.bit_length() > 64
        return "a huge number" if huge else repr(value)
    kinds = {"dict": "mapping", "tuple": "list"}
    kind = printable(type(value).__name__)
    return f"a {kinds.get(kind, kind)}"


def joined(lines: Iterable[str]) -> str:
    """The lines of one message; the first `MAX_LINES` of them where there are more."""
    different = list(dict.fromkeys(lines))
    rest = len(different) - MAX_LINES
    return "\n".join(different[:MAX_LINES] + ([f"... and {rest} more"] if rest > 0 else []))


def check_known(what: str, given: str, allowed: Iterable[str]) -> None:
    """Refuse an argument that is none of what is allowed, and name the nearest."""
    names = list(allowed)
    if given not in names:
        there = ", ".join(map(repr, names[:12])) or "none"
        hint = did_you_mean(given, names, repr)
        raise UserError(f"{what}: {given!r}: must be one of {there}{hint}")


def did_you_mean(
    given: object, names: Iterable[str], form: Callable[[str], str] = lambda name: name
) -> str:
    """Return ``; did you mean X?`` for the most similar name, case aside; nothing if none is."""
    by_lower = {name.lower(): name for name in names}
    near = get_close_matches(str(given)[:_LONGEST_VALUE].lower(), by_lower, n=1)
    return f"; did you mean {form(by_lower[near[0]])}?" if near else ""


def in_python(text: str, words: Mapping[str, str]) -> str:
    """A message in the words of Python, which replace the command's options: ``--resume``."""
    return re.sub(rf"(?<!\S)({'|'.join(words)})\b", lambda found: words[found[1]], text)


@contextmanager
def in_words(words: Mapping[str, str]) -> Iterator[None]:
    """Say what ends the work in the words of Python."""
    try:
        yield
    except BaseException as error:
        error.args = tuple(
            in_python(each, words) if isinstance(each, str) else each for each in error.args
        )
        raise
