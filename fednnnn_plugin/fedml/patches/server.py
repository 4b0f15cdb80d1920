"""The server of a cross-silo federation, where our aggregator is its."""

from types import ModuleType
from typing import Any

from fednnnn_plugin.fedml import hook
from fednnnn_plugin.fedml.patches import wrap

_INITIALIZER = ("fedml.cross_silo.server.server_initializer",)


def apply(_initializer: ModuleType) -> None:
    """Let FedML make our server manager for our aggregator, and its own for any other."""
    if hook.why_unusable() is None:
        wrap(_INITIALIZER, "FedMLServerManager", _make)


def _make(original: Any, *args: Any, **named: Any) -> Any:
    from fednnnn_plugin.fedml.server_manager import make_server_manager

    return make_server_manager(original, *args, **named)
