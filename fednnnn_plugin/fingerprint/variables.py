"""What a function's text refers to in the modules that it names."""

import re
import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.util import resolve_name
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from fednnnn_plugin.fingerprint.source_text import Source, assignment, rebound
from fednnnn_plugin.fingerprint.structure import BUILT_IN, MADE_OF, PLAIN, is_plain
from fednnnn_plugin.user_code import is_installed, own_module

_CODE = (types.FunctionType, type, *MADE_OF, *BUILT_IN)
_CONSTANT = (*PLAIN, tuple, frozenset, Tensor, np.ndarray)
_READS = re.compile(
    r"\b(open(_\w+)?|(\w*_)?read(_\w+|er|lines?)?|(\w*_)?load(s|txt|mat|arff|_\w+)?"
    r"|fromfile|genfromtxt)\("
)  # what is in a file, which no text tells


class Unknown(NamedTuple):
    """A thing that no digest tells apart."""

    name: str


class Variables(NamedTuple):
    """The variables of a module that a source names."""

    source: Source
    module: Mapping[str, Any]
    file: str


def variables_of(of: Variables) -> Iterator[object]:
    """Yield the code and the constants of a module, and how the others are assigned."""
    changed, package = of.source.changed | rebound(of.file), of.module.get("__package__") or ""
    named = of.source.names - of.source.inner
    for name in sorted(named & of.module.keys()):
        value = of.module[name]
        if name.startswith("__"):
            continue
        if isinstance(value, types.ModuleType):
            yield from _of_module(of.source, value)
        elif isinstance(value, _CODE) or (
            isinstance(value, _CONSTANT) and name not in changed and is_plain(value)
        ):
            yield from (name, value)
        elif type(value).__module__ == "typing":  # Any is a class on newer Pythons only
            yield from (name, repr(value))
        elif assigned := assignment(of.file, name):
            yield from (name, assigned.text)
            ran = tuple(each for each in assigned.imports if _gave(each, package, value))
            others = assigned.names - {name} - named
            yield Variables(assigned._replace(names=others, imports=ran), of.module, of.file)
            if _READS.search(assigned.text):
                yield Unknown(name)
        else:
            yield from (name, Unknown(name))
    for each in of.source.imports:
        module, attribute = _home(each, package), each[2]
        found: object = (home := own_module(module))
        if attribute:
            held = vars(home) if home else {}
            found = held[attribute] if attribute in held else own_module(f"{module}.{attribute}")
        if isinstance(found, types.ModuleType):
            yield from _of_module(of.source, found)
        else:
            yield from _of_module(of.source._replace(names=frozenset([attribute])), home)


def _gave(of: tuple[int, str, str], package: str, value: object) -> bool:
    """Tell whether a value is what an import names, in a module that was imported."""
    held = getattr(sys.modules.get(_home(of, package)), "__dict__", {})
    return of[2] in held and held[of[2]] is value


def _home(of: tuple[int, str, str], package: str) -> str:
    """Return the whole name of the module of an import."""
    module = f"{'.' * of[0]}{of[1]}"
    with suppress(ImportError):  # it is beyond the package
        return resolve_name(module, package)
    return module


def _of_module(source: Source, module: types.ModuleType | None) -> Iterator[object]:
    if module is not None and not is_installed(module):
        file = getattr(module, "__file__", None) or ""
        yield Variables(source._replace(imports=(), inner=frozenset()), vars(module), file)
