"""FedML's privacy, attacks and defences around our aggregation: what works, what is refused."""

import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from fedml.core.dp.fedml_differential_privacy import FedMLDifferentialPrivacy
from fedml.core.security.fedml_attacker import FedMLAttacker
from fedml.core.security.fedml_defender import FedMLDefender
from torch import Tensor

from fednnnn_plugin.errors import RunError, UserError, reason
from fednnnn_plugin.server.admission import checked_positive
from fednnnn_plugin.server.layout import State

_log = logging.getLogger(__name__)

#: (number of samples, model) of a client, as FedML hands it over.
ClientModel = tuple[Any, State]


class Choices(NamedTuple):
    """What a key of FedML's may say: what is tested with our aggregation, and why not the rest."""

    switch: str
    part: Any  # FedML's, of which a process has one
    works: tuple[str, ...]
    refused: dict[str, str]


_KRUMS = ("krum", "multikrum")
_SIGMAS = ("3sigma", "anomaly_detection")
# They remember clients by their position in the list: a client may not be left out of it.
_BY_POSITION = ("3sigma_foolsgold", "foolsgold", "anomaly_detection")
SUPPORTED = {
    "defense_type": Choices(
        "enable_defense",
        FedMLDefender,
        ("norm_diff_clipping", *_KRUMS, "3sigma", *_BY_POSITION),
        {
            **dict.fromkeys(
                ("rfa", "geo_median", "wise_median", "slsgd"), "it replaces the aggregation"
            ),
            "cclip": "it hands over differences instead of models",
            "crfl": "it changes the served model after the aggregation",
            "trimmed_mean": "its fraction has the name of our beta",
            "3sigma_geo": "it fails in FedML 0.9.6",
            **dict.fromkeys(("weak_dp", "robust_learning_rate"), "FedML 0.9.6 never calls it"),
        },
    ),
    "attack_type": Choices(
        "enable_attack",
        FedMLAttacker,
        ("byzantine", "model_replacement"),
        {
            "label_flipping": "FedML 0.9.6 trains cross-silo clients on the unflipped data",
            "dlg": "it is not tested with this aggregation",
        },
    ),
    "dp_solution_type": Choices(
        "enable_dp",
        FedMLDifferentialPrivacy,
        ("cdp", "ldp"),
        {
            "nbafl": "FedML 0.9.6 adds no noise under it",
            "dp_clip": "FedML 0.9.6 neither clips nor adds noise under it",
        },
    ),
}
_REFUSED = {
    "enable_fhe": "norms cannot be taken of encrypted models",
    "enable_contribution": "it averages by FedML's own rule, and fails in FedML 0.9.6",
}


def check_security(args: Any, weighting: str) -> None:
    """Refuse what does not go with our aggregation; say what FedML's ε leaves out."""
    for key, why in _REFUSED.items():
        if getattr(args, key, False):
            raise UserError(f"{key}: true: {why}: leave it out or false")
    defence, attack, privacy = (_chosen(args, key) for key in SUPPORTED)
    if defence:
        _check_defence(args, defence, weighting)
    if attack:
        _check_attack(args, attack)
    if privacy:
        _check_privacy(args, privacy)
    for (key, choices), chosen in zip(SUPPORTED.items(), (defence, attack, privacy), strict=True):
        part = choices.part.get_instance()
        part.is_enabled = False  # as an earlier federation of the process left it
        if chosen:
            _check_starts(part, args, f"{key}: {chosen}")


def _chosen(args: Any, key: str) -> str | None:
    switch, _, works, refused = SUPPORTED[key]
    if not getattr(args, switch, False):
        return None
    value = str(getattr(args, key, None)).strip()
    if value not in works:
        why = f" ({refused[value]})" if value in refused else ""
        raise UserError(f"{key}: {value}: must be one of {', '.join(works)}{why}")
    return value


def _check_starts(part: Any, args: Any, chosen: str) -> None:
    """Refuse settings with which FedML's code fails, or leaves out what was asked for."""
    try:
        part.init(args)
    except Exception as error:
        raise UserError(f"{chosen}: FedML 0.9.6 cannot start it: {reason(error)}") from None
    if not part.is_enabled:
        engine = getattr(args, "ml_engine", None)
        raise UserError(f"ml_engine: {engine}: FedML 0.9.6 leaves out {chosen} under it")


def _check_attack(args: Any, attack_type: str) -> None:
    if attack_type == "byzantine":
        _whole(args, "byzantine_client_num", 0, "attack_type byzantine")
        mode, modes = getattr(args, "attack_mode", None), ("zero", "random", "flip")
        if mode not in modes:
            raise UserError(f"attack_mode: {mode}: must be one of {', '.join(modes)}")
        return
    keys = ("malicious_client_id", "client_num_per_round")
    attacker, drawn = (getattr(args, key, None) for key in keys)
    if isinstance(attacker, int) and isinstance(drawn, int) and not 0 <= attacker < drawn:
        raise UserError(
            f"malicious_client_id: {attacker}: it counts the {drawn} clients of a round from 0; "
            f"must be below {drawn}"
        )


def _check_privacy(args: Any, solution: str) -> None:
    if getattr(args, "enable_rdp_accountant", False):
        raise UserError(
            "enable_rdp_accountant: true: it fails in FedML 0.9.6 under cdp, and counts nothing "
            "under ldp: leave it out or false"
        )
    if solution != "cdp":
        return
    unclipped = "; max_grad_norm is not set: FedML clips no client"
    if (norm := getattr(args, "max_grad_norm", None)) is not None:
        checked_positive("max_grad_norm", norm)
        unclipped = ""
    _log.warning(
        "global differential privacy: FedML's epsilon does not cover the server rule: noise is "
        "added after the average update was scaled by beta * E / N and joined by momentum%s",
        unclipped,
    )


def _check_defence(args: Any, defense_type: str, weighting: str) -> None:
    if defense_type == "foolsgold" and weighting != "samples":
        raise UserError(
            "defense_type: foolsgold: it puts its verdict into the numbers of samples: set "
            "train_args.client_weighting: samples"
        )
    if defense_type == "norm_diff_clipping":
        norm: Any = getattr(args, "norm_bound", None)
        checked_positive("norm_bound", norm)
    size = getattr(args, "bucketing_batch_size", None)
    if defense_type == "3sigma_foolsgold" and size not in (1, None):
        raise UserError(
            f"bucketing_batch_size: {size}: defense_type 3sigma_foolsgold would hand over "
            "averages of clients instead of their models; must be 1"
        )
    bound = getattr(args, "cosine_similarity_bound", 0.0)
    if defense_type == "anomaly_detection" and not isinstance(bound, int | float):
        raise UserError(f"cosine_similarity_bound: {bound!r}: must be a number")
    sum_of = ""
    if defense_type in _KRUMS:
        sum_of = ", which is 2 * byzantine_client_num + 2 + krum_param_m"
        _whole(args, "byzantine_client_num", 0, f"defense_type {defense_type}")
        if getattr(args, "krum_param_m", None) is not None:
            _whole(args, "krum_param_m", 1, f"defense_type {defense_type}")
    drawn, least = getattr(args, "client_num_per_round", None), _least_clients(args, defense_type)
    if isinstance(drawn, int) and drawn < least:
        raise UserError(
            f"defense_type: {defense_type}: client_num_per_round is {drawn}; must be at least "
            f"{least}{sum_of}"
        )


def _whole(args: Any, key: str, least: int, choice: str) -> None:
    value = getattr(args, key, None)
    if not isinstance(value, int) or value < least:
        raise UserError(f"{key}: {value}: {choice} needs a whole number of at least {least}")


def _least_clients(args: Any, defense_type: str) -> int:
    """Return how many clients a defence of FedML's must have, or it raises."""
    if defense_type in _KRUMS:
        return int(2 * args.byzantine_client_num + 2 + (getattr(args, "krum_param_m", None) or 1))
    return 3 if defense_type in _SIGMAS else 1


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

    for client in [k for k, model in models.items() if not is_finite(model)]:
        _log.warning("%s: update rejected: not finite", names[client])
        del models[client]
    if not models:
        return [], []
    defence = str(defender.defense_type) if defender.is_defense_enabled() else ""
    places = list(range(len(clients)) if defence in _BY_POSITION else models)
    if defence and len(places) < (least := _least_clients(defender.args, defence)):
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


def is_finite(state: State) -> bool:
    """Say whether no entry of a model is infinite or NaN."""
    return all(bool(tensor.isfinite().all()) for tensor in state.values())


def _equal(one: State, other: State) -> bool:
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def global_privacy() -> bool:
    """Say whether FedML clips clients and adds noise to what we serve."""
    return bool(FedMLDifferentialPrivacy.get_instance().is_global_dp_enabled())
