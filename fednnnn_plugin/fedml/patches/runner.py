"""Our methods by name in ``FedMLRunner``: simulations and cross-silo."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.fedml import hook
from fednnnn_plugin.fedml.methods import (
    names_ours,
    refuse_near_miss,
    simulates_ours,
    warn_of_the_proximal_term,
    warn_of_what_is_not_ours,
)
from fednnnn_plugin.fedml.patches import wrap

_RUNNER = ("fedml.runner.FedMLRunner",)


def apply(_fedml: ModuleType) -> None:
    """Let ``FedMLRunner`` take a method of ours as ``federated_optimizer``."""
    wrap(_RUNNER, "_init_simulation_runner", _simulation)
    wrap(_RUNNER, "_init_cross_silo_runner", _cross_silo)


def _simulation(
    original: Callable[..., Any], runner: Any, args: Any, *rest: Any, **named: Any
) -> Any:
    ours = simulates_ours(args)
    refuse_near_miss(args)
    for given in (*rest, *named.values()):
        if is_our_aggregator(given):
            method = getattr(args, "federated_optimizer", None)
            raise UserError(
                "server_aggregator",
                f"{type(given).__name__}: a simulation of {method} aggregates by that method",
                "set federated_optimizer: FedNNNN, and leave it out or give your tester instead",
            )
    if not ours:
        warn_of_what_is_not_ours(args)
        return original(runner, args, *rest, **named)
    hook.require()
    from fednnnn_plugin.fedml.simulator import Simulator

    return Simulator(args, *rest, **named)


def is_our_aggregator(server_aggregator: Any) -> bool:
    """Tell whether an aggregator is a FedNNNNAggregator, which was imported then."""
    module = sys.modules.get("fednnnn_plugin.fedml.aggregator")
    return module is not None and isinstance(server_aggregator, module.FedNNNNAggregator)


def _cross_silo(
    original: Callable[..., Any],
    runner: Any,
    args: Any,
    device: Any,
    dataset: Any,
    model: Any,
    client_trainer: Any = None,
    server_aggregator: Any = None,
) -> Any:
    refuse_near_miss(args)
    if not names_ours(args):
        if getattr(args, "role", None) == "server" and not is_our_aggregator(server_aggregator):
            warn_of_what_is_not_ours(args)
        return original(runner, args, device, dataset, model, client_trainer, server_aggregator)
    hook.require()
    from fednnnn_plugin.fedml.processes import end_federation_together

    end_federation_together(args)
    if args.role != "server":
        client_trainer = _trainer(args, dataset, model, client_trainer)
    elif not is_our_aggregator(server_aggregator):
        from fednnnn_plugin.fedml.aggregator import FedNNNNAggregator

        server_aggregator = FedNNNNAggregator(model, args, tester=server_aggregator)
    with _as_fedavg(args):
        return original(runner, args, device, dataset, model, client_trainer, server_aggregator)


def _trainer(args: Any, dataset: Any, model: Any, given: Any) -> Any:
    """Return the trainer that was given; else ours for our data, and FedML's for any other."""
    from fednnnn_plugin.fedml.client_trainer import FedNNNNClientTrainer
    from fednnnn_plugin.fedml.loaders import our_data

    if given is None and our_data(dataset) is not None:
        return FedNNNNClientTrainer(model, args)
    if not isinstance(given, FedNNNNClientTrainer):
        warn_of_the_proximal_term(args)
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
