"""The exception types, and how an error is worded on one line."""


class UserError(ValueError):
    """Bad input: each line of the message names what was given, where, and what is allowed.

    Commands print the message without a traceback and exit with status 2. It does not derive
    from ``KeyError``: FedML re-raises that as a message about ``args.rank``.
    """


class LaunchError(UserError):
    """Processes that were launched together do not know of each other: each has to say it."""


class RunError(RuntimeError):
    """A run that cannot go on, through no fault in its settings; the message is one line.

    Commands print it without a traceback and exit with status 1. The last checkpoint is in place.
    """


_LONGEST = 200  # characters of a long text's beginning, and of its end


def printable(text: object) -> str:
    """Text on one line: unprintable characters escaped, the middle of a long one left out."""
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))
    return line if len(line) <= 2 * _LONGEST else f"{line[:_LONGEST]}…{line[-_LONGEST:]}"


def reason(error: BaseException) -> str:
    """What an exception says, on one line, without a path that is said elsewhere."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__
