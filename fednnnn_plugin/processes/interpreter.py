"""New Python processes that import nothing from the working directory."""

import sys


def python_command(statement: str, *arguments: str) -> list[str]:
    """Return the command that runs a statement in a process that imports from where we do.

    That is not from the working directory, which ``python -m`` and ``python -c``, and so the
    processes of ``multiprocessing``, put first on the path. Python 3.10 has no ``-P``. What is no
    text, as a ``Path``, Python does not look at.
    """
    path = ascii([str(place) for place in sys.path if isinstance(place, str) and place])
    return [sys.executable, "-c", f"import sys; sys.path[:] = {path}; {statement}", *arguments]
