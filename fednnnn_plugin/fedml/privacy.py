"""FedML's differential privacy around our aggregation: what works, and what is refused."""

import logging
from collections import OrderedDict
from typing import Any

import torch
from fedml.core.dp.fedml_differential_privacy import FedMLDifferentialPrivacy
from torch import Tensor, nn

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.server.layout import State

_log = logging.getLogger(__name__)

_SOLUTIONS = ("cdp", "ldp")
_REFUSED = {
    "nbafl": "FedML 0.9.6 adds no noise under it",
    "dp_clip": "FedML 0.9.6 neither clips nor adds noise under it",
}


def check_privacy(args: Any) -> None:
    """Refuse what cannot work, and say what FedML's ε leaves out."""
    if getattr(args, "enable_fhe", False):
        raise UserError(
            "enable_fhe: true: norms cannot be taken of encrypted models: leave it out or false"
        )
    if not getattr(args, "enable_dp", False):
        return
    solution = str(getattr(args, "dp_solution_type", None)).strip()
    if solution not in _SOLUTIONS:
        reason = _REFUSED.get(solution)
        raise UserError(
            f"dp_solution_type: {solution}: must be one of {', '.join(_SOLUTIONS)}"
            + (f" ({reason})" if reason else "")
        )
    if solution == "cdp":
        clipping = "" if getattr(args, "max_grad_norm", None) is not None else _UNCLIPPED
        _log.warning("%s%s", _EPSILON, clipping)


_EPSILON = (
    "global differential privacy: FedML's epsilon does not cover the server rule: noise is added "
    "after the average update was scaled by beta * E / N and joined by momentum"
)
_UNCLIPPED = "; max_grad_norm is not set: FedML clips no client"


def global_privacy() -> bool:
    """Say whether FedML clips clients and adds noise to what we serve."""
    return bool(FedMLDifferentialPrivacy.get_instance().is_global_dp_enabled())


def with_global_noise(served: State, model: nn.Module) -> OrderedDict[str, Tensor]:
    """Return the served model with FedML's noise on its floating point entries.

    Noise on a running variance must not make it negative, where batch normalisation gives NaN;
    clipping afterwards costs no privacy.
    """
    noised = noise_on_floats(FedMLDifferentialPrivacy.get_instance().add_global_noise, served)
    for prefix, module in model.named_modules():
        if isinstance(getattr(module, "running_var", None), Tensor):
            name = f"{prefix}.running_var" if prefix else "running_var"
            if name in noised:
                noised[name].clamp_(min=0.0)
    return noised


def noise_on_floats(add_noise: Any, state: State) -> OrderedDict[str, Tensor]:
    """Return a state with noise on its floating point entries, in their dtypes and places."""
    floating = OrderedDict(
        (name, tensor.detach().cpu())
        for name, tensor in state.items()
        if tensor.is_floating_point()
    )
    noised = add_noise(floating)
    return OrderedDict(
        (name, torch.as_tensor(noised[name]).to(tensor) if name in noised else tensor)
        for name, tensor in state.items()
    )
