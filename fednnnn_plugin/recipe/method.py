"""A recipe's method: the rule that it names, and the values of the rule's keys.

The rules are imported where a recipe is validated, not with this package: they import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple

from pydantic_core import PydanticCustomError

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.recipe.values import Caller, decimal, refused
from fednnnn_plugin.recipe.wording import shown
from fednnnn_plugin.user_code import names_code, refuse_code

if TYPE_CHECKING:
    from fednnnn_plugin.server.rules import Rule

KEY = "train_args.federated_optimizer"


class Problem(NamedTuple):
    """What is wrong with the value of ``section.key``, or an unknown key where there is no text."""

    key: str
    text: str


def methods() -> str:
    """What ``federated_optimizer`` must be, in words."""
    from fednnnn_plugin.server.rules import RULES

    return f"one of {', '.join(RULES)}, or MODULE:CLASS"


def find_method(name: str, caller: Caller) -> Rule:
    """Return the rule of a name; import it where it is the user's and may run.

    Raises:
        PydanticCustomError: there is none, or it may not.
    """
    from fednnnn_plugin.server.rules import RULES, load_rule

    if names_code(name):
        where = caller.where(KEY)
        try:
            if not caller.allow_code:
                raise refuse_code(where, name)
            return load_rule(name, where)
        except UserError as error:
            raise PydanticCustomError("lines", "lines", {"lines": str(error)}) from None
    if name in RULES:
        return RULES[name]
    known = {rule.lower(): rule for rule in RULES}
    near = get_close_matches(name[:60].lower(), known, n=1)
    hint = f"; did you mean {known[near[0]]}?" if near else ""
    raise refused(f"must be {methods()}{hint}")


def check_settings(given: Mapping[str, object], method: str | None) -> dict[str, float]:
    """Return the values of a rule's keys, the defaults filled in.

    Args:
        given: what ``train_args`` has beside the keys that every method has.
        method: the rule's name; None where it is in error itself.

    Raises:
        PydanticCustomError: keys that are missing, out of range, of another rule, or unknown.
    """
    from fednnnn_plugin.server.rules import RULES

    rule = RULES[method] if method is not None else None
    every = {name: key for other in RULES.values() for name, key in other.keys.items()}
    settings: dict[str, float] = {}
    problems: list[Problem] = []
    for name, key in (every if rule is None else rule.keys).items():
        value = decimal(given.get(name))
        value = key.default if value is None else value
        if value is not None and key.check(value):
            settings[name] = float(value)
        elif value is not None:
            text = f"{shown(value)}: must be {key.allowed}"
            problems.append(Problem(f"train_args.{name}", text))
        elif rule is not None:
            text = f"missing; {rule.name} needs it: {key.allowed}"
            problems.append(Problem(f"train_args.{name}", text))
    for name, value in given.items():
        if name not in every:
            problems.append(Problem(f"train_args.{name}", ""))
        elif rule is not None and name not in rule.keys and value is not None:
            owners = " and ".join(other.name for other in RULES.values() if name in other.keys)
            text = f"{rule.name} does not use it; leave it out or null (it belongs to {owners})"
            problems.append(Problem(f"train_args.{name}", f"{shown(decimal(value))}: {text}"))
    if problems:
        raise PydanticCustomError("problems", "problems", {"problems": problems})
    return settings
