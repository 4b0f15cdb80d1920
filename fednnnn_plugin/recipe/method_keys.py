"""A recipe's method: the rule and the client method that it names, and the values of their keys."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from fednnnn_plugin.client.method import ClientMethod
from fednnnn_plugin.client.methods import METHODS, load_client_method
from fednnnn_plugin.errors import UserError, one_of, shown
from fednnnn_plugin.recipe.kinds import Caller, decimal
from fednnnn_plugin.recipe.schema import SECTIONS, own_keys
from fednnnn_plugin.server.rules import RULES, Key, Rule, load_rule
from fednnnn_plugin.user_code import names_code, refuse_code

RULE, CLIENT_METHOD = "train_args.federated_optimizer", "train_args.client_method"
Found = TypeVar("Found", Rule, type[ClientMethod])
# What others call our rules.
_USUAL = {"fedavg": "PaperFedAvg", "fedmom": "Momentum", "slowmo": "Momentum"}


def method_keys() -> dict[str, Key]:
    """The keys of all rules and client methods, custom ones too once they are allowed."""
    every: list[Mapping[str, Key]] = [rule.keys for rule in RULES.values()]
    every += [method.keys for method in METHODS.values()]
    return {name: key for keys in every for name, key in keys.items()}


def find_method(name: object, caller: Caller) -> Rule:
    """The rule of a name, imported where it is the user's and may run; else a ``UserError``."""
    return _find(name, RULES, load_rule, RULE, caller)


def find_client_method(name: object, rule: Rule | None, caller: Caller) -> type[ClientMethod]:
    """The client method of a name, which is None for the rule's own; else a ``UserError``."""
    of_rule = rule.client_method if rule else None
    if rule and of_rule and of_rule not in METHODS and not names_code(of_rule):
        given = f"{shown(of_rule)}, which {rule.name} names"
        raise UserError(CLIENT_METHOD, given, one_of(METHODS, of_rule))
    if name is None and of_rule is None:
        return ClientMethod
    name = of_rule if name is None else name
    method = _find(name, METHODS, load_client_method, CLIENT_METHOD, caller)
    if rule is None:
        return method
    if of_rule and of_rule != name:
        given = f"{shown(name)}: {rule.name}'s is {of_rule}"
        raise UserError(CLIENT_METHOD, given, "leave it out, or give that one")
    for key in sorted(method.keys.keys() & rule.keys.keys()):
        its = f"{name}: its key {key}"
        if of_rule is None:
            raise UserError(CLIENT_METHOD, f"{its} is {rule.name}'s too", "call it otherwise")
        if method.keys[key] != rule.keys[key]:
            given = f"{its} has another range or default than {rule.name}'s"
            raise UserError(CLIENT_METHOD, given, "must be the same")
    return method


def method_settings(
    train: Mapping[str, object], caller: Caller
) -> tuple[dict[str, float], dict[str, str]]:
    """The values of the method's keys, defaults filled in; and what is wrong with ``section.key``.

    Beside a method that is itself in error, the keys of all are judged.
    """
    named, client_named = train.get("federated_optimizer"), train.get("client_method")
    problems: dict[str, str] = {}
    rule = client = None
    try:
        rule = find_method(named, caller)
    except UserError as error:
        problems[RULE] = error.problem
    try:
        client = find_client_method(client_named, rule, caller)
    except UserError as error:
        problems[CLIENT_METHOD] = error.problem
    every = method_keys()
    client_name = str(named) if client_named is None else f"client_method {client_named}"
    needs = dict.fromkeys(rule.keys if rule else (), str(named))
    needs |= dict.fromkeys(client.keys if client else (), client_name)
    taken = {**rule.keys, **client.keys} if rule and client else every
    settings: dict[str, float] = {}
    for name, key in taken.items():
        value = decimal(train.get(name))
        value = key.default if value is None else value
        if value is not None and key.check(value):
            settings[name] = float(value)
        elif value is not None:
            problems[f"train_args.{name}"] = f"{shown(value)}: must be {key.allowed}"
        elif name in needs:
            problems[f"train_args.{name}"] = f"missing; {needs[name]} needs it: {key.allowed}"
    used_by = str(named) if client_named is None else f"{named} with {client_name}"
    for name in (each for each in every if each not in (*taken, *caller.left)):
        if (value := decimal(train.get(name))) is not None:
            problems[f"train_args.{name}"] = (
                f"{shown(value)}: {used_by} does not use it; leave it out or null "
                f"(it belongs to {' and '.join(_owners(name))})"
            )
    return settings, problems


def _find(
    name: object,
    known: Mapping[str, Found],
    load: Callable[[str, str], Found],
    where: str,
    caller: Caller,
) -> Found:
    if names_code(name):
        if not caller.allow_code:  # though it may be loaded
            raise refuse_code(where, str(name))
        found = load(str(name), where)
    elif str(name) in known:
        found = known[str(name)]
    else:
        given = "missing" if name is None else shown(name)
        usual = str(name).lower()
        is_clients = where == RULE and usual in METHODS
        meant = None if is_clients else _USUAL.get(usual, name)
        hint = f"; it is a client method: {CLIENT_METHOD}: {usual}" if is_clients else ""
        raise UserError(where, given, one_of(known, meant, "MODULE:CLASS") + hint)
    every = {key for section in SECTIONS for key in own_keys(section)}
    if taken := sorted(every.intersection(found.keys)):
        given = f"{name}: its key {taken[0]} is every recipe's"
        raise UserError(where, given, "call it otherwise")
    return found


def _owners(key: str) -> list[str]:
    """Name the rules and client methods that a key belongs to."""
    methods = [name for name, method in METHODS.items() if key in method.keys]
    rules = [
        rule.name for rule in RULES.values() if key in rule.keys or rule.client_method in methods
    ]
    return [*rules, *(f"client_method {name}" for name in methods)]
