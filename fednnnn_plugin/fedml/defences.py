"""The client models on their way through FedML's clipping, attacks and defences."""

import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from fedml.core.dp.fedml_differential_privacy import FedMLDifferentialPrivacy
from fedml.core.security.fedml_attacker import FedMLAttacker
from fedml.core.security.fedml_defender import FedMLDefender
from torch import Tensor

from fednnnn_plugin.errors import RunError, reason
from fednnnn_plugin.fedml.security import least_clients
from fednnnn_plugin.server.layout import State

_log = logging.getLogger(__name__)

#: (number of samples, model) of a client, as FedML hands it over.
ClientModel = tuple[Any, State]

# They remember clients by their position in the list: a client may not be left out of it.
_BY_POSITION = ("3sigma_foolsgold", "foolsgold", "anomaly_detection")


def before_aggregation(
    clients: Sequence[tuple[Any, State | None]], served: State, names: Sequence[str]
) -> tuple[list[ClientModel], list[int]]:
    """Pass the client models through FedML's clipping, attacks and defences.

    FedML's code changes models and lists in place, and knows floating point entries only: it gets
    copies without the integer buffers, which the models that it keeps get back. It is thrown by
    NaN, so that models that are not finite never reach it. It expects all on one device: ``w_t``'s.
    A client without a model has failed. Returns what the aggregation is to average, and the
    positions of those clients in ``clients``; ``names`` are theirs in the log.
    """
    privacy = FedMLDifferentialPrivacy.get_instance()
    attacker, defender = FedMLAttacker.get_instance(), FedMLDefender.get_instance()
    clip = privacy.is_clipping()
    models = {k: model for k, (_, model) in enumerate(clients) if model is not None}
    if not (clip or attacker.is_enabled or defender.is_defense_enabled()):
        return [(clients[k][0], model) for k, model in models.items()], list(models)

    for client in [k for k, model in models.items() if not _is_finite(model)]:
        _log.warning("%s: update rejected: not finite", names[client])
        del models[client]
    if not models:
        return [], []
    defence = str(defender.defense_type) if defender.is_defense_enabled() else ""
    places = list(range(len(clients)) if defence in _BY_POSITION else models)
    if defence and len(places) < (least := least_clients(defender.args, defence)):
        raise RunError(
            f"defense_type: {defence}: {len(places)} of {len(clients)} clients sent a finite "
            f"model; it needs {least}"
        )
    w_t = _floats(served, served)
    given = [(clients[k][0], _floats(models.get(k, served), served)) for k in places]
    if clip:
        given = privacy.global_clip(given)
    chosen = ""
    try:
        if attacker.is_model_attack():
            chosen = f"attack_type: {attacker.attack_type}"
            given = attacker.attack_model(given, w_t)
        kept = given
        if defence:
            chosen = f"defense_type: {defence}"
            kept = defender.defend_before_aggregation(list(given), w_t)
    except Exception as error:  # theirs, of models with one entry, with scalars, in bfloat16, ...
        raise RunError(
            f"{chosen}: FedML 0.9.6 fails on these clients' models: {reason(error)}"
        ) from error

    result: list[ClientModel] = []
    positions = []
    for (samples, model), origin in zip(kept, _origins(given, kept), strict=True):
        client = places[origin]
        if client in models:
            result.append((samples, {**models[client], **model}))
            positions.append(client)
    return result, positions


def _origins(given: Sequence[ClientModel], kept: Sequence[ClientModel]) -> list[int]:
    """Return which of the given models each kept one was."""
    if len(kept) == len(given):  # changed, it may be, but all there and in their order
        return list(range(len(given)))
    origins: list[int] = []
    for _, model in kept:
        rest = (k for k in range(len(given)) if k not in origins)
        origins.append(next(k for k in rest if _equal(given[k][1], model)))
    return origins


def _floats(state: State, served: State) -> OrderedDict[str, Tensor]:
    """Copy the floating point entries to where the served model's are."""
    return OrderedDict(
        (name, tensor.detach().to(served[name].device, copy=True))
        for name, tensor in state.items()
        if tensor.is_floating_point()
    )


def _is_finite(state: State) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in state.values())


def _equal(one: State, other: State) -> bool:
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())
