"""New Python processes that import nothing from the working directory."""

import os
import sys


def python_command(statement: str, *arguments: str) -> list[str]:
    """Return the command that runs a statement in a process that imports from where we do.

    That is not from the working directory, which ``python -m`` and ``python -c``, and so the
    processes of ``multiprocessing``, put first on the path. Python 3.10 has no ``-P``. At what is
    neither text nor bytes, as a ``Path``, Python does not look.
    """
    texts = (os.fsdecode(place) for place in sys.path if isinstance(place, str | bytes))
    path = ascii([str(place) for place in texts if place])
    return [sys.executable, "-c", f"import sys; sys.path[:] = {path}; {statement}", *arguments]
