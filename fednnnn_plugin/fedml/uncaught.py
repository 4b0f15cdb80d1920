"""How a FedML script ends that an error ends: in a line if it is ours, with all its processes."""

import atexit
import os
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeAlias

from fednnnn_plugin.errors import RunError, UserError
from fednnnn_plugin.processes.endings import ending, leave_unsaid

_Hook: TypeAlias = Callable[[type[BaseException], BaseException, TracebackType | None], Any]
_IS_OURS = "__fednnnn_ends__"
_aborts: list[Callable[[int], object]] = []  # what ends the other processes too, by the exit status


def end_all_on_uncaught(abort: Callable[[int], object]) -> None:
    """Call ``abort`` with the exit status where the script itself raises."""
    if not _aborts:
        _aborts.append(abort)
    sys.excepthook = ending_in_a_line(sys.excepthook)


def ending_in_a_line(before: _Hook) -> _Hook:
    """Return an excepthook that ends a script with the line of an error of ours.

    Else it would stand in a traceback of FedML's and of this package's, which says nothing more.
    The exit status is that of commands. ``before`` shows every other error.
    """
    if hasattr(before, _IS_OURS):
        return before

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        is_ours = isinstance(error, UserError | RunError)
        if is_ours:
            leave_unsaid()
            sys.stderr.write(f"error: {error}\n")
        else:
            before(kind, error, trace)
        leave_unsaid()
        if _aborts:
            _aborts[0](ending(error)[1])
        elif is_ours and not hasattr(sys, "ps1"):
            atexit._run_exitfuncs()
            os._exit(ending(error)[1])  # a hook has no other way

    vars(hook)[_IS_OURS] = True
    return hook
