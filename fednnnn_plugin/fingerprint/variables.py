"""What a function's text refers to in the modules that it names."""

import types
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.util import resolve_name
from typing import Any, NamedTuple

from fednnnn_plugin.fingerprint.source_text import Source, assignment, rebound
from fednnnn_plugin.fingerprint.structure import BUILT_IN, MADE_OF, PLAIN, is_plain
from fednnnn_plugin.user_code import is_installed, own_module

_CODE = (types.FunctionType, type, *MADE_OF, *BUILT_IN)


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
    changed = of.source.changed | rebound(of.file)
    imported = {attribute or name.partition(".")[0] for _, name, attribute in of.source.imports}
    for name in sorted((of.source.names & of.module.keys()) - imported):
        value = of.module[name]
        if name.startswith("__"):
            continue
        if isinstance(value, types.ModuleType):
            yield from _of_module(of.source, value)
        elif isinstance(value, _CODE) or (
            isinstance(value, (*PLAIN, tuple, frozenset))
            and name not in changed
            and is_plain(value)
        ):
            yield from (name, value)
        elif type(value).__module__ == "typing":  # Any is a class on newer Pythons only
            yield from (name, repr(value))
        elif assigned := assignment(of.file, name):
            yield from (name, assigned.text)
            others = assigned._replace(names=assigned.names - {name} - of.source.names)
            yield Variables(others, of.module, of.file)
        else:
            yield from (name, Unknown(name))
    package = of.module.get("__package__") or ""
    for level, name, attribute in of.source.imports:
        module = f"{'.' * level}{name}"
        with suppress(ImportError):  # it is beyond the package
            module = resolve_name(module, package)
        found: object = (home := own_module(module))
        if attribute:
            held = vars(home) if home else {}
            found = held[attribute] if attribute in held else own_module(f"{module}.{attribute}")
        if isinstance(found, types.ModuleType):
            yield from _of_module(of.source, found)
        else:
            yield from _of_module(of.source._replace(names=frozenset([attribute])), home)


def _of_module(source: Source, module: types.ModuleType | None) -> Iterator[object]:
    if module is not None and not is_installed(module):
        file = getattr(module, "__file__", None) or ""
        yield Variables(source._replace(imports=()), vars(module), file)
