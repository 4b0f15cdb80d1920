"""The server of a cross-silo federation, where our aggregator is its."""

from types import ModuleType
from typing import Any

from fednnnn_plugin.fedml import hook
from fednnnn_plugin.fedml.patches import wrap
from fednnnn_plugin.fedml.patches.runner import is_our_aggregator

_INITIALIZER = ("fedml.cross_silo.server.server_initializer",)


def apply(_initializer: ModuleType) -> None:
    """Let FedML make our server manager for our aggregator, and its own for any other."""
    if hook.why_unusable() is None:
        wrap(_INITIALIZER, "FedMLServerManager", _make)


def _make(original: Any, args: Any, aggregator: Any, *rest: Any, **named: Any) -> Any:
    if not is_our_aggregator(aggregator.aggregator):
        return original(args, aggregator, *rest, **named)
    from fednnnn_plugin.fedml.server_manager import ServerManager
    from fednnnn_plugin.fedml.silos import check_testing

    check_testing(args)
    return ServerManager(args, aggregator, *rest, **named)
