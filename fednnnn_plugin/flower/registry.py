"""A strategy class for each server rule of the registry."""

from typing import Any

from fednnnn_plugin.errors import UserError, check_known
from fednnnn_plugin.flower.strategy import RuleStrategy
from fednnnn_plugin.server.rules import RULES

_classes: dict[str, type[RuleStrategy]] = {}


def strategy_names() -> list[str]:
    """Return the names of the rules that are strategies: of all whose clients train as they like.

    A rule that belongs to a client method, as PaperFedProx to FedProx's clients, is no strategy.
    """
    return [name for name, rule in RULES.items() if name.isidentifier() and not rule.client_method]


def strategy_class(name: str) -> type[RuleStrategy]:
    """Return the strategy of a rule, the same class at each call."""
    rule = RULES.get(name)
    if rule is not None and rule.client_method:
        raise UserError(
            "strategy",
            f"{name!r}: its clients train by the method {rule.client_method}, which is the "
            "ClientApp's",
            "use PaperFedAvg here, and train so there",
        )
    check_known("strategy", name, strategy_names())
    rule, made = RULES[name], _classes.get(name)
    if made is None or made.rule != rule:
        doc = (rule.optimizer.__doc__ or name).partition("\n\n")[0]
        keys = "; ".join(f"``{key}``: {of.allowed}" for key, of in rule.keys.items()) or "none"
        doc += f"\n\n    The rule's settings: {keys}. The others are RuleStrategy's."
        own = {"rule": rule, "__doc__": doc, "__module__": __package__}
        made = _classes[name] = type(name, (RuleStrategy,), own)
    return made


def strategy(name: str, **options: Any) -> RuleStrategy:
    """Return the Flower strategy of a server rule.

    Args:
        name: of a rule in :data:`~fednnnn_plugin.server.rules.RULES`, such as ``"FedNNNN"``, or of
            your own class with ``@fednnnn_plugin.rule(...)``.
        **options: the rule's settings, such as ``beta`` and ``gamma``, and those of
            :class:`~fednnnn_plugin.flower.RuleStrategy`.

    Raises:
        UserError: an unknown name; a setting that is missing, unknown or out of range.

    Example::

        strategy = fednnnn_plugin.flower.strategy("FedNNNN", beta=0.7, gamma=0.6, trainable=model)
        result = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=30)
    """
    return strategy_class(name)(**options)
