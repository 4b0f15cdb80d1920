"""Our methods in ``FedMLRunner``."""

import sys
from collections.abc import Callable
from typing import Any

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.fedml import compatibility
from fednnnn_plugin.fedml.patches.wrapping import wrapper


def apply() -> None:
    """Let ``FedMLRunner`` run a simulation of ours where ``federated_optimizer`` names a method."""
    runner = getattr(sys.modules.get("fedml.runner"), "FedMLRunner", None)
    original = getattr(runner, "_init_simulation_runner", None)
    if runner is not None and original is not None:
        runner._init_simulation_runner = wrapper(original, _init_simulation_runner)


def is_ours(args: Any) -> bool:
    """Say whether FedML's arguments ask for one of our methods in a simulation."""
    from fednnnn_plugin.server.rules import RULES

    return (
        getattr(args, "training_type", None) == "simulation"
        and getattr(args, "federated_optimizer", None) in RULES
    )


def _init_simulation_runner(
    original: Callable[..., Any], runner: Any, args: Any, *rest: Any, **named: Any
) -> Any:
    if not is_ours(args):
        _refuse_aggregator(args, *rest[3:], **named)
        return original(runner, args, *rest, **named)
    compatibility.require()
    from fednnnn_plugin.fedml.simulator import Simulator

    return Simulator(args, *rest, **named)


def _refuse_aggregator(
    args: Any, client_trainer: Any = None, server_aggregator: Any = None, **_: Any
) -> None:
    """Refuse our aggregator where FedML's simulators would leave it out without a word."""
    module = sys.modules.get("fednnnn_plugin.fedml.aggregator")
    if module is not None and isinstance(server_aggregator, module.FedNNNNAggregator):
        raise UserError(
            f"server_aggregator: {type(server_aggregator).__name__}: a simulation of "
            f"{getattr(args, 'federated_optimizer', None)} ignores it: set "
            "federated_optimizer: FedNNNN and leave server_aggregator out"
        )
