"""The exception types, and how an error and a user's values are worded on one line."""

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from difflib import get_close_matches
from operator import attrgetter


class UserError(ValueError):
    """Bad input: where it was given, what was given, and what is allowed or what to do.

    Commands print the text, ``where: given: allowed`` without the parts that are empty, without a
    traceback, and exit with status 2.

    Attributes:
        where: the key, argument, option, file or object.
        given: the value, or what is wrong with it.
        allowed: what it must be, or a remedy.
    """

    # It does not derive from KeyError: FedML re-raises that as a message about args.rank.

    def __init__(self, where: object, given: object = "", allowed: object = "") -> None:
        self.where, self.given, self.allowed = str(where), str(given), str(allowed)
        super().__init__(self.where, self.given, self.allowed)

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.where, self.problem)))

    @property
    def problem(self) -> str:
        """What is wrong, without its place."""
        return ": ".join(filter(None, (self.given, self.allowed)))

    @property
    def each(self) -> "tuple[UserError, ...]":
        """The mistakes, if there are several."""
        return (self,)

    def at(self, where: object) -> "UserError":
        """Return the same mistake for those who know the place by another name."""
        return UserError(where, self.given, self.allowed)


class UserErrors(UserError):
    """Several mistakes: a line for each, once, the first `MAX_LINES` of them."""

    def __init__(self, errors: Iterable[UserError]) -> None:
        each = {str(one): one for error in errors for one in error.each}
        super().__init__(joined(each))
        self.args = (tuple(each.values()),)

    @property
    def each(self) -> tuple[UserError, ...]:
        """The mistakes."""
        mistakes: tuple[UserError, ...] = self.args[0]
        return mistakes


def begin_anew(why: str) -> UserError:
    """The error of a run whose folder has not what it needs to go on."""
    return UserError(RESUME, why, f"begin anew with {OVERWRITE}")


class StartError(UserError):
    """What a run does in each round fails before the first one; other settings may help."""


class RunError(RuntimeError):
    """A run that cannot continue, although its settings are right; the message is one line.

    Commands print it without a traceback and exit with status 1; the last finished round is
    saved.
    """


@dataclass(frozen=True)
class Option:
    """A setting whose name in a message is that of where it is given.

    That is the command, but within `options_named`, where Python or a FedML script begins.
    """

    python: str
    command: str

    def __str__(self) -> str:
        return _name.get()(self)


RESUME = Option("resume=True", "--resume")
OVERWRITE = Option("overwrite=True", "--overwrite")
ALLOW_CODE = Option("allow_code=True", "--allow-code")
OUTPUT = Option("output", "--output")
BACKEND = Option("backend", "--backend")
OVERRIDES = Option("overrides:", "--set")

_name: ContextVar[Callable[[Option], str]] = ContextVar("name", default=attrgetter("command"))


@contextmanager
def options_named(name: Callable[[Option], str | None]) -> Iterator[None]:
    """Name options by ``name`` inside; those for which it has None as before."""
    before = _name.get()
    token = _name.set(lambda option: name(option) or before(option))
    try:
        yield
    finally:
        _name.reset(token)


#: Decorates what a Python program calls.
in_python = options_named(attrgetter("python"))


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


def said_by(error: BaseException) -> str:
    """What an exception says: its class, perhaps a user's, may fail to."""
    try:
        return str(error)
    except Exception:
        return "<exception str() failed>"  # as Python shows it


def reason(error: BaseException) -> str:
    """What an exception says, on one line, without a path that is said elsewhere."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else said_by(error)
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


def some_of(names: Iterable[object], most: int) -> str:
    """The first names, and how many more there are: ``a, b and 3 more``."""
    every = list(map(str, names))
    rest = len(every) - most
    return ", ".join(every[:most]) + (f" and {rest} more" if rest > 0 else "")


def joined(lines: Iterable[str]) -> str:
    """The lines of one message; the first `MAX_LINES` of them where there are more."""
    different = list(dict.fromkeys(lines))
    rest = len(different) - MAX_LINES
    return "\n".join(different[:MAX_LINES] + ([f"... and {rest} more"] if rest > 0 else []))


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra of the package."""
    return f"pip install '.[{extra}]' in a clone of the repository"


def check_known(what: object, given: object, allowed: Iterable[str]) -> None:
    """Refuse an argument that is none of what is allowed, and name the nearest."""
    names = list(allowed)
    if given not in names:
        there = ", ".join(map(repr, names[:12])) or "none"
        hint = did_you_mean(given, names, repr)
        raise UserError(what, printable(repr(given)), f"must be one of {there}{hint}")


def one_of(names: Iterable[str], given: object, code: str = "") -> str:
    """Say what a name must be, perhaps ``code`` of the user's, and which one is the nearest."""
    known = [*names]
    hint = did_you_mean(given, known) if isinstance(given, str) else ""
    return f"must be one of {', '.join(known)}{f', or {code}' if code else ''}{hint}"


def did_you_mean(
    given: object, names: Iterable[str], form: Callable[[str], str] = str, near: float = 0.6
) -> str:
    """Return ``; did you mean X?`` for the most similar name, case aside; nothing if none is.

    Similar is what has a ratio of difflib's of at least ``near``.
    """
    by_lower = {name.lower(): name for name in names}
    found = get_close_matches(str(given)[:_LONGEST_VALUE].lower(), by_lower, 1, near)
    return f"; did you mean {form(by_lower[found[0]])}?" if found else ""
