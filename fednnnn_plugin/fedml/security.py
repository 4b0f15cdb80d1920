"""FedML's privacy, attacks and defences around our aggregation: what works, what is refused."""

import logging
from collections import OrderedDict
from typing import Any

import torch
from fedml.core.dp.fedml_differential_privacy import FedMLDifferentialPrivacy
from fedml.core.security.fedml_attacker import FedMLAttacker
from fedml.core.security.fedml_defender import FedMLDefender
from torch import Tensor

from fednnnn_plugin.errors import UserError, reason
from fednnnn_plugin.server.admission import checked_positive
from fednnnn_plugin.server.layout import State

_log = logging.getLogger(__name__)

#: FedML's key -> its switch, what is tested with our aggregation, and why the rest is refused.
SUPPORTED: dict[str, tuple[str, tuple[str, ...], dict[str, str]]] = {
    "defense_type": (
        "enable_defense",
        (
            "norm_diff_clipping",
            "krum",
            "multikrum",
            "3sigma",
            "3sigma_foolsgold",
            "foolsgold",
            "anomaly_detection",
        ),
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
    "attack_type": (
        "enable_attack",
        ("byzantine", "model_replacement"),
        {
            "label_flipping": "FedML 0.9.6 trains cross-silo clients on the unflipped data",
            "dlg": "it is not tested with this aggregation",
        },
    ),
    "dp_solution_type": (
        "enable_dp",
        ("cdp", "ldp"),
        {
            "nbafl": "FedML 0.9.6 adds no noise under it",
            "dp_clip": "FedML 0.9.6 neither clips nor adds noise under it",
        },
    ),
}
_KRUMS = ("krum", "multikrum")
_SIGMAS = ("3sigma", "anomaly_detection")
_MODES = ("zero", "random", "flip")
_PARTS: dict[str, Any] = {
    "defense_type": FedMLDefender,
    "attack_type": FedMLAttacker,
    "dp_solution_type": FedMLDifferentialPrivacy,
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
    chosen = {key: _chosen(args, key) for key in SUPPORTED}
    defence, attack, privacy = chosen.values()
    if defence:
        _check_defence(args, defence, weighting)
    if attack:
        _check_attack(args, attack)
    if privacy:
        _check_privacy(args, privacy)
    for key, part in _PARTS.items():
        part.get_instance().is_enabled = False  # as an earlier federation of the process left it
        if chosen[key]:
            _check_starts(part.get_instance(), args, f"{key}: {chosen[key]}")
    if privacy == "cdp":
        unclipped = getattr(args, "max_grad_norm", None) is None
        _log.warning(
            "global differential privacy: FedML's epsilon does not cover the server rule: noise is "
            "added after the average update was scaled by beta * E / N and joined by momentum%s",
            "; max_grad_norm is not set: FedML clips no client" if unclipped else "",
        )


def least_clients(args: Any, defense_type: str) -> int:
    """Return how many clients a defence of FedML's must have, or it raises."""
    if defense_type in _KRUMS:
        return int(2 * args.byzantine_client_num + 2 + (getattr(args, "krum_param_m", None) or 1))
    return 3 if defense_type in _SIGMAS else 1


def _check_byzantine(args: Any, choice: str) -> None:
    byzantine = getattr(args, "byzantine_client_num", None)
    if not isinstance(byzantine, int) or byzantine < 0:
        raise UserError(f"byzantine_client_num: {byzantine}: {choice} needs a whole number")


def _check_attack(args: Any, attack_type: str) -> None:
    if attack_type == "byzantine":
        _check_byzantine(args, "attack_type byzantine")
        mode = getattr(args, "attack_mode", None)
        if mode not in _MODES:
            raise UserError(f"attack_mode: {mode}: must be one of {', '.join(_MODES)}")
        return
    keys = ("malicious_client_id", "client_num_per_round")
    attacker, drawn = (getattr(args, key, None) for key in keys)
    if isinstance(attacker, int) and isinstance(drawn, int) and not 0 <= attacker < drawn:
        raise UserError(
            f"malicious_client_id: {attacker}: it counts the {drawn} clients of a round from 0; "
            f"must be below {drawn}"
        )


def _check_privacy(args: Any, solution: str) -> None:
    if solution == "cdp" and getattr(args, "max_grad_norm", None) is not None:
        checked_positive("max_grad_norm", args.max_grad_norm)
    if getattr(args, "enable_rdp_accountant", False):
        raise UserError(
            "enable_rdp_accountant: true: it fails in FedML 0.9.6 under cdp, and counts nothing "
            "under ldp: leave it out or false"
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
    if defense_type in _KRUMS:
        _check_byzantine(args, f"defense_type {defense_type}")
        kept = getattr(args, "krum_param_m", None)
        if kept is not None and (not isinstance(kept, int) or kept < 1):
            raise UserError(f"krum_param_m: {kept!r}: must be a whole number of at least 1")
    drawn, least = getattr(args, "client_num_per_round", None), least_clients(args, defense_type)
    if isinstance(drawn, int) and drawn < least:
        sum_of = ", which is 2 * byzantine_client_num + 2 + krum_param_m"
        raise UserError(
            f"defense_type: {defense_type}: client_num_per_round is {drawn}; must be at least "
            f"{least}{sum_of if defense_type in _KRUMS else ''}"
        )


def _check_starts(part: Any, args: Any, chosen: str) -> None:
    """Refuse settings with which FedML's code fails, or leaves out what was asked for."""
    try:
        part.init(args)
    except Exception as error:
        raise UserError(f"{chosen}: FedML 0.9.6 cannot start it: {reason(error)}") from None
    if not part.is_enabled:
        engine = getattr(args, "ml_engine", None)
        raise UserError(f"ml_engine: {engine}: FedML 0.9.6 leaves out {chosen} under it")


def _chosen(args: Any, key: str) -> str | None:
    switch, allowed, refused = SUPPORTED[key]
    if not getattr(args, switch, False):
        return None
    value = str(getattr(args, key, None)).strip()
    if value not in allowed:
        why = f" ({refused[value]})" if value in refused else ""
        raise UserError(f"{key}: {value}: must be one of {', '.join(allowed)}{why}")
    return value


def global_privacy() -> bool:
    """Say whether FedML clips clients and adds noise to what we serve."""
    return bool(FedMLDifferentialPrivacy.get_instance().is_global_dp_enabled())


def with_global_noise(served: State) -> OrderedDict[str, Tensor]:
    """Return the served model with FedML's noise on its floating point entries."""
    return noise_on_floats(FedMLDifferentialPrivacy.get_instance().add_global_noise, served)


def noise_on_floats(add_noise: Any, state: State) -> OrderedDict[str, Tensor]:
    """Return a state with noise on its floating point entries, in their dtypes and places.

    No running variance is negative.
    """
    floating = OrderedDict(
        (name, tensor.detach().cpu())
        for name, tensor in state.items()
        if tensor.is_floating_point()
    )
    noised = add_noise(floating)
    return clamp_variances(
        OrderedDict(
            (name, torch.as_tensor(noised[name]).to(tensor) if name in noised else tensor)
            for name, tensor in state.items()
        )
    )


def clamp_variances(state: OrderedDict[str, Tensor]) -> OrderedDict[str, Tensor]:
    """Make no running variance of a state negative, and return the state.

    Noise may, and batch normalisation then gives NaN; clipping afterwards costs no privacy.
    """
    for name, tensor in state.items():
        if name.rpartition(".")[2] == "running_var":
            tensor.clamp_(min=0.0)
    return state
