"""The server rules, one file each; :data:`RULES` lists them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType

from fednnnn_plugin.server.rules.registry import (
    Evaluated,
    Key,
    Rule,
    _rules,
    decay,
    find_rule,
    load_rule,
    non_negative,
    positive,
    rule,
)

#: Every registered rule by its name: the paper's in the order of its table, then the others.
RULES: Mapping[str, Rule] = MappingProxyType(_rules)

__all__ = [
    "RULES",
    "Evaluated",
    "Key",
    "Rule",
    "decay",
    "find_rule",
    "load_rule",
    "non_negative",
    "positive",
    "rule",
]

for _file in iter_modules(__path__):
    import_module(f"{__name__}.{_file.name}")
for _rule in sorted(_rules.values(), key=lambda rule: (rule.place is None, rule.place, rule.name)):
    _rules[_rule.name] = _rules.pop(_rule.name)
