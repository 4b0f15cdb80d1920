"""Our methods by name in ``FedMLRunner``'s cross-silo federations."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.fedml import compatibility
from fednnnn_plugin.fedml.patches.wrapping import wrapper

_log = logging.getLogger(__name__)


def apply() -> None:
    """Let a cross-silo server and client take a method of ours as ``federated_optimizer``."""
    runner = getattr(sys.modules.get("fedml.runner"), "FedMLRunner", None)
    original = getattr(runner, "_init_cross_silo_runner", None)
    if runner is not None and original is not None:
        runner._init_cross_silo_runner = wrapper(original, _init_cross_silo_runner)


def _init_cross_silo_runner(
    original: Callable[..., Any], runner: Any, args: Any, *rest: Any, **named: Any
) -> Any:
    from fednnnn_plugin.server.rules import RULES

    if getattr(args, "federated_optimizer", None) not in RULES:
        return original(runner, args, *rest, **named)
    compatibility.require()
    return _run_ours(original, runner, args, *rest, **named)


def _run_ours(
    original: Callable[..., Any],
    runner: Any,
    args: Any,
    device: Any,
    dataset: Any,
    model: Any,
    client_trainer: Any = None,
    server_aggregator: Any = None,
) -> Any:
    if args.role == "server":
        server_aggregator = _aggregator(args, model, server_aggregator)
    else:
        client_trainer = _trainer(args, dataset, model, client_trainer)
    with _as_fedavg(args):
        return original(runner, args, device, dataset, model, client_trainer, server_aggregator)


def _aggregator(args: Any, model: Any, given: Any) -> Any:
    from fednnnn_plugin.fedml.aggregator import FedNNNNAggregator

    if given is None:
        return FedNNNNAggregator(model, args)
    if not isinstance(given, FedNNNNAggregator):
        raise UserError(
            f"server_aggregator: {type(given).__name__}: federated_optimizer "
            f"{args.federated_optimizer} aggregates by that method: leave server_aggregator out, "
            "or name FedAvg"
        )
    return given


def _trainer(args: Any, dataset: Any, model: Any, given: Any) -> Any:
    """Return the trainer that was given; else ours for our data, and FedML's for any other."""
    from fednnnn_plugin.fedml.loaders import staged_data
    from fednnnn_plugin.fedml.trainer import FedNNNNClientTrainer

    if given is None and staged_data(dataset) is not None:
        return FedNNNNClientTrainer(model, args)
    if args.federated_optimizer == "PaperFedProx" and not isinstance(given, FedNNNNClientTrainer):
        _log.warning(
            "client_trainer: %s trains the client: the proximal term of PaperFedProx is its own to "
            "add (args.prox_mu)",
            "FedML's default" if given is None else type(given).__name__,
        )
    return given


@contextmanager
def _as_fedavg(args: Any) -> Iterator[None]:
    """Name FedAvg for the time of a federation of ours: FedML's server and client know no other.

    They run all of it in their constructors. Server, aggregator and trainer share one ``args``,
    so it cannot be a copy.
    """
    method, args.federated_optimizer = args.federated_optimizer, "FedAvg"
    try:
        yield
    finally:
        args.federated_optimizer = method
