"""The client methods, one file each, and custom ones."""

from collections.abc import Mapping
from importlib import import_module
from inspect import getmembers, isclass
from pkgutil import iter_modules

from fednnnn_plugin.client.method import ClientMethod
from fednnnn_plugin.errors import UserError, printable
from fednnnn_plugin.server.rules import Key
from fednnnn_plugin.user_code import load_code

#: By the name that a recipe's ``client_method`` has, which for ours is that of the file.
METHODS: dict[str, type[ClientMethod]] = {}


def load_client_method(reference: str, where: str) -> type[ClientMethod]:
    """Import a custom ``module:Class``, and register it under that name.

    Whoever calls this has made sure that the user allows the code to run.
    """
    return name_client_method(reference, load_code(reference, where), where)


def name_client_method(name: str, found: object, where: str) -> type[ClientMethod]:
    """Register a custom method under a name."""
    if not (isinstance(found, type) and issubclass(found, ClientMethod)):
        raise UserError(where, name, "must be a subclass of fednnnn_plugin.ClientMethod")
    keys = found.keys.items() if isinstance(found.keys, Mapping) else [(None, None)]
    if not all(isinstance(key, str) and isinstance(of, Key) for key, of in keys):
        must = "must be a dict of names with positive(), non_negative() or decay()"
        raise UserError(where, f"{name}: keys: {printable(found.keys)}", must)
    for kind in ("sends", "keeps", "returns", "scalars"):
        names = getattr(found, kind)
        if not isinstance(names, tuple | list) or not all(isinstance(each, str) for each in names):
            given = f"{name}: {kind}: {printable(repr(names))}"
            raise UserError(where, given, 'must be a tuple of names, such as ("c",)')
    METHODS[name] = found
    return found


for _file in iter_modules(__path__):
    _module = import_module(f"{__name__}.{_file.name}")
    for _, _found in getmembers(_module, isclass):
        if issubclass(_found, ClientMethod) and _found.__module__ == _module.__name__:
            METHODS[_file.name] = _found
