"""A recipe's method: the rule that it names, and the values of the rule's keys.

The rules are imported where a recipe is validated, not with this package: they import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.recipe.kinds import Caller, decimal, refused
from fednnnn_plugin.recipe.wording import shown
from fednnnn_plugin.user_code import names_code, refuse_code

if TYPE_CHECKING:
    from fednnnn_plugin.server.rules import Rule

METHOD = "train_args.federated_optimizer"


def find_method(name: Any, caller: Caller) -> Rule:
    """Return the rule of a name; import it where it is the user's and may run.

    Raises:
        PydanticCustomError: there is none, or it may not.
    """
    from fednnnn_plugin.server.rules import RULES, load_rule

    rule = RULES.get(str(name))
    if rule is not None:  # a user's own too, once it was allowed
        return rule
    if names_code(name):
        try:
            if caller.allow_code:
                return load_rule(name, METHOD)
            raise refuse_code(METHOD, name)
        except UserError as error:
            raise refused({METHOD: str(error).removeprefix(f"{METHOD}: ")}) from None
    known = {rule.lower(): rule for rule in RULES}
    near = get_close_matches(str(name)[:60].lower(), known, n=1)
    hint = f"; did you mean {known[near[0]]}?" if near else ""
    given = "missing;" if name is None else f"{shown(name)}:"
    text = f"{given} must be one of {', '.join(RULES)}, or MODULE:CLASS{hint}"
    raise refused({METHOD: text})


def rule_settings(given: Mapping[str, object], method: str | None) -> dict[str, float]:
    """Return the values of a rule's keys, the defaults filled in.

    Args:
        given: what ``train_args`` has beside the keys of every method.
        method: the rule's name; None where it is in error itself.

    Raises:
        PydanticCustomError: keys that are missing, out of range, of another rule, or unknown.
    """
    from fednnnn_plugin.server.rules import RULES

    rule = None if method is None else RULES[method]
    every = {name: key for other in RULES.values() for name, key in other.keys.items()}
    settings: dict[str, float] = {}
    problems: dict[str, str] = {}  # without a text: there is no such key
    keys = every if rule is None else rule.keys
    for name, key in keys.items():
        value = decimal(given.get(name))
        value = key.default if value is None else value
        if value is not None and key.check(value):
            settings[name] = float(value)
        elif value is not None:
            problems[name] = f"{shown(value)}: must be {key.allowed}"
        elif rule is not None:
            problems[name] = f"missing; {method} needs it: {key.allowed}"
    others = {} if rule is None else {name: given[name] for name in given if name not in keys}
    for name, value in others.items():
        if name not in every:
            problems[name] = ""
        elif value is not None:
            owners = " and ".join(other.name for other in RULES.values() if name in other.keys)
            text = f"{method} does not use it; leave it out or null (it belongs to {owners})"
            problems[name] = f"{shown(decimal(value))}: {text}"
    if problems:
        raise refused({f"train_args.{name}": text for name, text in problems.items()})
    return settings
