"""The patches. Each acts on our names only and passes the rest through.

On a FedML that we do not know the wrappers go in all the same, where there is something to wrap:
they change nothing for FedML's own names and make ours fail with one line that says why.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

from fednnnn_plugin.fedml.methods import in_scripts

_MARK = "__fednnnn_wraps__"


def wrapper(original: Callable[..., Any], around: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls ``around(original, *args, **kwargs)``; a wrapper is left as is.

    ``around`` passes on to FedML's function whatever is not ours.
    """
    if hasattr(original, _MARK):
        return original

    @functools.wraps(original)
    @in_scripts
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    setattr(wrapped, _MARK, original)
    return wrapped


def wrap(owners: tuple[str, ...], attribute: str, around: Callable[..., Any]) -> None:
    """Replace a function of FedML in the modules or the class that hold it.

    Another version of FedML may lack it: there our names fail before they need it.
    """
    wrappers: dict[Any, Callable[..., Any]] = {}  # one a function, however many modules hold it
    for name in owners:
        module, _, last = name.rpartition(".")
        owner = sys.modules.get(name) or getattr(sys.modules.get(module), last, None)
        original = getattr(owner, attribute, None)
        if original is not None:
            setattr(owner, attribute, wrappers.setdefault(original, wrapper(original, around)))
