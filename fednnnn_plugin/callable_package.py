"""A package that is called as a function: ``fp.report(...)``, beside ``fednnnn_plugin.report``."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


def make_callable(package: str, module: str) -> None:
    """Let a package be called for the function of its own name in one of its modules.

    Python binds an imported package to its name in the parent, whatever stood there before.
    """

    class Callable(ModuleType):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            function = getattr(import_module(module, package), package.rpartition(".")[2])
            return function(*args, **kwargs)

    sys.modules[package].__class__ = Callable
