"""FedML's differential privacy on the floating point entries of a model."""

from collections import OrderedDict
from typing import Any

import torch
from fedml.core.dp.fedml_differential_privacy import FedMLDifferentialPrivacy
from torch import Tensor, nn

from fednnnn_plugin.server.layout import State


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
