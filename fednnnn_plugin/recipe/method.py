"""A recipe's method: the rule that it names, and the values of the rule's keys."""

from collections.abc import Mapping
from difflib import get_close_matches

from fednnnn_plugin.errors import UserError, shown
from fednnnn_plugin.recipe.kinds import Caller, decimal
from fednnnn_plugin.recipe.schema import SECTIONS, own_keys
from fednnnn_plugin.server.rules import RULES, Key, Rule, load_rule
from fednnnn_plugin.user_code import names_code, refuse_code

METHOD = "train_args.federated_optimizer"


def rule_keys() -> dict[str, Key]:
    """The keys of all rules, a user's own too once it was allowed."""
    return {name: key for rule in RULES.values() for name, key in rule.keys.items()}


def find_method(name: object, caller: Caller) -> Rule:
    """The rule of a name, imported where it is the user's and may run; else a ``UserError``."""
    known = None if names_code(name) else RULES.get(str(name))  # a user's own may run or may not
    rule = known or _imported(name, caller)
    for section in SECTIONS:
        for key in own_keys(section):
            if key in rule.keys:
                raise UserError(f"{name}: its key {key} is every recipe's; call it otherwise")
    return rule


def _imported(name: object, caller: Caller) -> Rule:
    if not names_code(name):
        known = {rule.lower(): rule for rule in RULES}
        near = get_close_matches(str(name)[:60].lower(), known, n=1)
        hint = f"; did you mean {known[near[0]]}?" if near else ""
        given = "missing;" if name is None else f"{shown(name)}:"
        raise UserError(f"{given} must be one of {', '.join(RULES)}, or MODULE:CLASS{hint}")
    try:
        if caller.allow_code:
            return load_rule(str(name), METHOD)
        raise refuse_code(METHOD, str(name))
    except UserError as error:
        raise UserError(str(error).removeprefix(f"{METHOD}: ")) from None


def method_settings(
    train: Mapping[str, object], caller: Caller
) -> tuple[dict[str, float], dict[str, str]]:
    """The values of the method's keys, defaults filled in; and what is wrong with ``section.key``.

    Beside a method that is itself in error, the keys of all rules are judged.
    """
    method, rule = train.get("federated_optimizer"), None
    problems: dict[str, str] = {}
    try:
        rule = find_method(method, caller)
    except UserError as error:
        problems[METHOD] = str(error)
    every = rule_keys()
    taken = every if rule is None else rule.keys
    settings: dict[str, float] = {}
    for name, key in taken.items():
        value = decimal(train.get(name))
        value = key.default if value is None else value
        if value is not None and key.check(value):
            settings[name] = float(value)
        elif value is not None:
            problems[f"train_args.{name}"] = f"{shown(value)}: must be {key.allowed}"
        elif rule is not None:
            problems[f"train_args.{name}"] = f"missing; {method} needs it: {key.allowed}"
    for name in (name for name in every if name not in taken):
        if (value := decimal(train.get(name))) is not None:
            owners = " and ".join(other.name for other in RULES.values() if name in other.keys)
            problems[f"train_args.{name}"] = (
                f"{shown(value)}: {method} does not use it; leave it out or null "
                f"(it belongs to {owners})"
            )
    return settings, problems
