"""A package that is called as a function: ``fp.report(...)``, beside ``fednnnn_plugin.report``."""

import sys
from collections.abc import Callable
from importlib import import_module
from inspect import getdoc, signature
from types import ModuleType
from typing import Any


def make_callable(package: str, module: str) -> None:
    """Let a package be called for the function of its own name in one of its modules.

    ``help`` shows that function too. Python binds an imported package to its name in the parent,
    whatever stood there before.
    """

    def function() -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(
            import_module(module, package), package.rpartition(".")[2]
        )
        return found

    def documentation() -> str:
        return f"{function().__name__}{signature(function())}\n\n{getdoc(function())}"

    of_the_function = {
        "__call__": lambda _, *args, **kwargs: function()(*args, **kwargs),
        "__doc__": property(lambda _: documentation()),
        "__signature__": property(lambda _: signature(function())),
    }
    sys.modules[package].__class__ = type("CallablePackage", (ModuleType,), of_the_function)
