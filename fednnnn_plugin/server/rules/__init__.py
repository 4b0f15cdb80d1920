"""The server rules, one file each; :data:`RULES` lists them."""

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType

from fednnnn_plugin.server.rules.registry import Evaluated as Evaluated
from fednnnn_plugin.server.rules.registry import Rule as Rule
from fednnnn_plugin.server.rules.registry import _rules
from fednnnn_plugin.server.rules.registry import decay as decay
from fednnnn_plugin.server.rules.registry import find_rule as find_rule
from fednnnn_plugin.server.rules.registry import load_rule as load_rule
from fednnnn_plugin.server.rules.registry import non_negative as non_negative
from fednnnn_plugin.server.rules.registry import positive as positive
from fednnnn_plugin.server.rules.registry import rule as rule

#: Every registered rule by its name: the paper's in the order of its table, then the others.
RULES: Mapping[str, Rule] = MappingProxyType(_rules)

for _file in iter_modules(__path__):
    import_module(f"{__name__}.{_file.name}")
for _rule in sorted(_rules.values(), key=lambda rule: (rule.place is None, rule.place, rule.name)):
    _rules[_rule.name] = _rules.pop(_rule.name)
