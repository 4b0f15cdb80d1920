"""FedML's differential privacy on the floating point entries of a model."""

from collections import OrderedDict
from typing import Any

import torch
from fedml.core.dp.fedml_differential_privacy import FedMLDifferentialPrivacy
from torch import Tensor

from fednnnn_plugin.server.layout import State


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
