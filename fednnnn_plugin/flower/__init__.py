"""The server rules as strategies of Flower, each under its name: ``FedNNNN``, ``NormNorm``, ….

A rule that needs clients of a method, as FedProx and FedDyn, is none. A rule of your own that is
registered by :func:`fednnnn_plugin.rule` is one.
"""

from importlib.util import find_spec

from fednnnn_plugin.errors import UserError, how_to_install

if not all(map(find_spec, ("flwr", "flwr.app", "flwr.app.typing"))):  # up to the first missing
    raise UserError(
        "fednnnn_plugin.flower",
        "needs Flower 1.42 or later, on Python 3.11 or later and not beside FedML",
        how_to_install("flower"),
    )

from fednnnn_plugin.flower.registry import strategy as strategy
from fednnnn_plugin.flower.registry import strategy_class, strategy_names
from fednnnn_plugin.flower.strategy import RuleStrategy as RuleStrategy


def __getattr__(name: str) -> type[RuleStrategy]:
    if name in strategy_names():
        return strategy_class(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(["RuleStrategy", "strategy", *strategy_names()])
