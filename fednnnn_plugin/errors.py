"""The one exception type for mistakes that a user can mend."""


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
