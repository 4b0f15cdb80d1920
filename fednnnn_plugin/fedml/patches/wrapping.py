"""How a function of FedML is replaced: once, where it is looked up, and marked as ours."""

import functools
import sys
from collections.abc import Callable
from typing import Any

_MARK = "__fednnnn_wraps__"


def wrapper(original: Callable[..., Any], around: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls ``around(original, *args, **kwargs)``; a wrapper is left as is.

    Args:
        original: FedML's function.
        around: what runs in its place; it passes on to ``original`` whatever is not ours.
    """
    if hasattr(original, _MARK):
        return original

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    setattr(wrapped, _MARK, original)
    return wrapped


def wrap(modules: tuple[str, ...], attribute: str, around: Callable[..., Any]) -> None:
    """Replace a function of FedML in the modules that hold it; those without it are left alone."""
    wrappers: dict[Any, Callable[..., Any]] = {}  # one a function, however many modules hold it
    for name in modules:
        module = sys.modules.get(name)
        original = getattr(module, attribute, None)
        if original is not None:
            replacement = wrappers.setdefault(original, wrapper(original, around))
            setattr(module, attribute, replacement)
