"""How a FedML script ends that an error of ours ends: with its line, and its exit status."""

import atexit
import os
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeAlias

from fednnnn_plugin.errors import RunError, UserError

_Hook: TypeAlias = Callable[[type[BaseException], BaseException, TracebackType | None], Any]
_SHOWS = "__fednnnn_shows__"


def ending_in_a_line(before: _Hook) -> _Hook:
    """Return an excepthook that ends a script with the line of an error of ours.

    Else it would stand in a traceback of FedML's and of this package's, which says nothing more.
    The exit status is that of commands. ``before`` shows every other error.
    """
    if hasattr(before, _SHOWS):
        return before

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, UserError | RunError):
            sys.stdout.flush()
            sys.stderr.write(f"error: {error}\n")
            sys.stderr.flush()
        else:
            before(kind, error, trace)

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        show(kind, error, trace)
        if isinstance(error, UserError | RunError) and not hasattr(sys, "ps1"):
            atexit._run_exitfuncs()
            os._exit(2 if isinstance(error, UserError) else 1)  # a hook has no other way

    vars(hook)[_SHOWS] = show
    return hook


def shown_by(hook: _Hook) -> _Hook:
    """Return what shows an error as an excepthook of ours does, and ends nothing."""
    shows: _Hook = getattr(hook, _SHOWS, hook)
    return shows
