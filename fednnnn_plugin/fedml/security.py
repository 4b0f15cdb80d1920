"""FedML's privacy, attacks and defences around our aggregation: what works, what is refused."""

import logging
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

from fedml.core.dp.fedml_differential_privacy import FedMLDifferentialPrivacy
from fedml.core.security.fedml_attacker import FedMLAttacker
from fedml.core.security.fedml_defender import FedMLDefender
from torch import Tensor

from fednnnn_plugin.errors import RunError, UserError, reason, shown
from fednnnn_plugin.recipe.mappings import Part, whole
from fednnnn_plugin.server.layout import State
from fednnnn_plugin.server.rules import Key, positive

_log = logging.getLogger(__name__)

#: (number of samples, model) of a client, as FedML hands it over.
ClientModel = tuple[Any, State]


class Choices(NamedTuple):
    """What a key of FedML's may say: what is tested with our aggregation."""

    switch: str
    part: Any  # FedML's, of which a process has one
    works: dict[str, tuple[str, ...]]  # and the settings that each one needs


# What a setting must be; what is optional has a default.
_SETTINGS: dict[str, Part | Key] = {
    "norm_bound": positive(),
    "max_grad_norm": positive(),
    "byzantine_client_num": whole(0),
    "malicious_client_id": whole(0),
    "krum_param_m": whole(1),
    "attack_mode": Part(lambda value: value in ("zero", "random", "flip"), "zero, random or flip"),
    # It fails in FedML 0.9.6 under cdp, and counts nothing under ldp.
    "enable_rdp_accountant": Part(lambda value: value in (False,), "false"),
}
_OPTIONAL = ("max_grad_norm", "malicious_client_id", "krum_param_m", "enable_rdp_accountant")
_KRUM = ("byzantine_client_num", "krum_param_m")
_NOISE = ("mechanism_type", "epsilon", "delta", "sensitivity")
_REPLACEMENT = "model_replacement"  # its client is a position in the list
_CHOICES = {
    "defense_type": Choices(
        "enable_defense",
        FedMLDefender,
        {"norm_diff_clipping": ("norm_bound",), "krum": _KRUM, "multikrum": _KRUM},
    ),
    "attack_type": Choices(
        "enable_attack",
        FedMLAttacker,
        {
            "byzantine": ("byzantine_client_num", "attack_mode"),
            _REPLACEMENT: ("malicious_client_id",),
        },
    ),
    "dp_solution_type": Choices(
        "enable_dp",
        FedMLDifferentialPrivacy,
        {"cdp": ("max_grad_norm", "enable_rdp_accountant"), "ldp": ("enable_rdp_accountant",)},
    ),
}
# FedML's other choices, and why not.
_REFUSED = {
    **dict.fromkeys(("rfa", "geo_median", "wise_median", "slsgd"), "it replaces the aggregation"),
    "cclip": "it hands over differences instead of models",
    "crfl": "it changes the served model after the aggregation",
    "trimmed_mean": "its fraction has the name of our beta",
    "foolsgold": "it puts its verdict into the numbers of samples",
    **dict.fromkeys(
        ("3sigma", "3sigma_geo", "3sigma_foolsgold", "anomaly_detection", "dlg"),
        "it is not tested with this aggregation",
    ),
    **dict.fromkeys(("weak_dp", "robust_learning_rate"), "FedML 0.9.6 never calls it"),
    "label_flipping": "FedML 0.9.6 trains cross-silo clients on the unflipped data",
    "nbafl": "FedML 0.9.6 adds no noise under it",
    "dp_clip": "FedML 0.9.6 neither clips nor adds noise under it",
}
_MAY_NOT_BE_ENABLED = {
    "enable_fhe": "norms cannot be taken of encrypted models",
    "enable_contribution": "it averages by FedML's own rule, and fails in FedML 0.9.6",
}


#: What turns on any of it.
SWITCHES = (*(choices.switch for choices in _CHOICES.values()), *_MAY_NOT_BE_ENABLED)


def turn_off_earlier() -> None:
    """Turn off the attacks and the privacy of an earlier federation of the process.

    FedML's defences begin anew with each aggregator, and no trainer asks for them.
    """
    for part in (FedMLAttacker, FedMLDifferentialPrivacy):
        part.get_instance().is_enabled = False


def refuse_enabled(args: Any, switches: Mapping[str, str]) -> None:
    """Refuse what is turned on, and say why it may not be; and any switch that is a text."""
    for switch in SWITCHES:
        if isinstance(given := getattr(args, switch, None), str):  # "false" would turn it on
            raise UserError(switch, shown(given), "must be true or false")
    for switch, why in switches.items():
        if getattr(args, switch, False):
            raise UserError(switch, f"true: {why}", "leave it out or false")


def check_security(args: Any) -> None:
    """Refuse what does not go with our aggregation, and start the rest anew."""
    refuse_enabled(args, _MAY_NOT_BE_ENABLED)
    turn_off_earlier()
    for key, choices in _CHOICES.items():
        switched = getattr(args, choices.switch, None)
        if switched:
            _start(choices.part.get_instance(), args, key, choices)
        elif switched is None and getattr(args, key, None):
            chosen = shown(getattr(args, key))
            _log.warning("%s: %s: without effect: %s is not given", key, chosen, choices.switch)
    if global_privacy():
        _log.warning(
            "global differential privacy: FedML's epsilon does not cover the server rule: noise is "
            "added after the average update was scaled by beta * E / N and joined by momentum%s",
            "" if args.max_grad_norm else "; max_grad_norm is not set: FedML clips no client",
        )


def security_settings(args: Any) -> dict[str, Any]:
    """Return what is turned on of FedML's privacy, attacks and defences, for the records."""
    found: dict[str, Any] = {}
    for key, choices in _CHOICES.items():
        if getattr(args, choices.switch, None):
            chosen = str(getattr(args, key)).strip()
            names = (*choices.works[chosen], *(_NOISE if key == "dp_solution_type" else ()))
            found |= {key: chosen} | {name: getattr(args, name, None) for name in names}
    return {key: value for key, value in found.items() if value is not None}


def _start(part: Any, args: Any, key: str, choices: Choices) -> None:
    chosen = str(getattr(args, key, None)).strip()
    if chosen not in choices.works:
        why = f" ({_REFUSED[chosen]})" if chosen in _REFUSED else ""
        raise UserError(key, chosen, f"must be one of {', '.join(choices.works)}{why}")
    for name in choices.works[chosen]:
        value, must = getattr(args, name, None), _SETTINGS[name]
        if not (must.check(value) or (value is None and name in _OPTIONAL)):
            raise UserError(name, f"{shown(value)}: {key} {chosen} needs {must.allowed}")
    drawn, least = getattr(args, "client_num_per_round", None), _least_clients(args, chosen)
    if isinstance(drawn, int) and drawn < least:
        raise UserError("client_num_per_round", f"{drawn}: {key} {chosen} needs at least {least}")
    try:
        part.init(args)
    except Exception as error:
        raise UserError(key, f"{chosen}: FedML 0.9.6 cannot start it: {reason(error)}") from None
    if not part.is_enabled:
        engine = getattr(args, "ml_engine", None)
        raise UserError("ml_engine", f"{engine}: FedML 0.9.6 leaves out {key}: {chosen} under it")


def _least_clients(args: Any, chosen: str) -> int:
    """Return how many clients a choice of FedML's must have, or it raises."""
    if chosen in ("krum", "multikrum"):
        return int(2 * args.byzantine_client_num + 2 + (getattr(args, "krum_param_m", None) or 1))
    if chosen == _REPLACEMENT:
        return (getattr(args, "malicious_client_id", None) or 0) + 1  # it counts them from 0
    return 1


def secured(models: Mapping[int, ClientModel], total: int, served: State) -> dict[int, ClientModel]:
    """Return what FedML's clipping, attacks and defences make of client models, and keep of them.

    They are by their positions among the ``total`` of the round, and finite: NaN throws FedML's
    code. It changes models and lists in place, and knows floating point entries only: it gets
    copies without the integer buffers, which the models that it keeps get back. It expects all on
    one device: ``w_t``'s.
    """
    attacker, defender = FedMLAttacker.get_instance(), FedMLDefender.get_instance()
    defence = str(defender.defense_type) if defender.is_defense_enabled() else ""
    if defence and len(models) < (least := _least_clients(defender.args, defence)):
        raise RunError(
            f"defense_type: {defence}: {len(models)} of {total} clients have data and sent a "
            f"finite model; it needs {least}"
        )
    w_t = _floats(served, served)
    chosen = f"attack_type: {attacker.attack_type}" if attacker.is_model_attack() else ""
    replaced = chosen and attacker.attack_type == _REPLACEMENT
    attacked = list(range(total) if replaced else models)
    every = (models.get(k, (1, served)) for k in attacked)
    given = [(samples, _floats(model, served)) for samples, model in every]
    if global_privacy():
        given = FedMLDifferentialPrivacy.get_instance().global_clip(given)
    try:
        if chosen:
            given = attacker.attack_model(given, w_t)
        kept = given = [one for k, one in zip(attacked, given, strict=True) if k in models]
        if defence:
            chosen = f"defense_type: {defence}"
            kept = defender.defend_before_aggregation(list(given), w_t)
    except Exception as error:  # theirs, of models with one entry, with scalars, in bfloat16, ...
        raise RunError(
            f"{chosen}: FedML 0.9.6 fails on these clients' models: {reason(error)}"
        ) from error

    places = list(models)
    if len(kept) != len(given):  # else changed, it may be, but all there and in their order
        origins = {id(model): place for place, (_, model) in zip(places, given, strict=True)}
        places = [origins[id(model)] for _, model in kept]
    pairs = zip(places, kept, strict=True)
    return {k: (samples, {**models[k][1], **model}) for k, (samples, model) in pairs}


def _floats(state: State, served: State) -> OrderedDict[str, Tensor]:
    """Copy the floating point entries to where the served model's are, and into their order.

    FedML compares models as flat vectors.
    """
    return OrderedDict(
        (name, state[name].detach().to(own.device, copy=True))
        for name, own in served.items()
        if own.is_floating_point()
    )


def is_finite(state: State) -> bool:
    """Say whether no entry of a model is infinite or NaN."""
    return all(bool(tensor.isfinite().all()) for tensor in state.values())


def is_changing() -> bool:
    """Say whether FedML clips, attacks or leaves out clients."""
    parts = FedMLAttacker.get_instance(), FedMLDefender.get_instance()
    return global_privacy() or any(part.is_enabled for part in parts)


def global_privacy() -> bool:
    """Say whether FedML clips clients and adds noise to what we serve."""
    return bool(FedMLDifferentialPrivacy.get_instance().is_global_dp_enabled())
