"""A model's state as FedML sends it: under every name."""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from fednnnn_plugin.client.replica import aliases, named_tensors
from fednnnn_plugin.engine.model_check import averaged_copy
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.server.admission import check_client
from fednnnn_plugin.server.layout import State


def served_copy(model: Any) -> nn.Module:
    """Return a copy of a model, or refuse one that the server rule cannot move."""
    if not isinstance(model, nn.Module):
        raise UserError(f"model: {type(model).__name__}: must be a torch.nn.Module")
    copied = averaged_copy(model, "model:", torch.float64)
    if other := model.state_dict().keys() - named_tensors(model).keys() - aliases(model).keys():
        raise UserError(f"model: {min(other)}: must be a parameter or a buffer")
    return copied


def check_client_state(model: nn.Module, state: Any) -> None:
    """Refuse a client's model that is another model than ours, before FedML's code meets it."""
    check_client(state, {name: (t.shape, t.dtype) for name, t in model.state_dict().items()})
    for name, first in aliases(model).items():
        one, other = state[name], state[first].to(state[name].device)
        if not torch.equal(one.nan_to_num(), other.nan_to_num()):
            raise UserError(f"{name}: differs from {first}, to which it is tied")


def whole_state(
    model: nn.Module, state: State, device: torch.device | None = None
) -> OrderedDict[str, Tensor]:
    """Return a copy of a state under all of the model's names, in its dtypes, on one device."""
    tied = aliases(model)
    return OrderedDict(
        (name, state[tied.get(name, name)].detach().to(device, tensor.dtype, copy=True))
        for name, tensor in model.state_dict().items()
    )
