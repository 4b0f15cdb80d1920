"""A model's state as the engine handles it: each tensor once, by its first name."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

State = Mapping[str, Tensor]


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the live parameters and persistent buffers, tied ones once."""
    saved = model.state_dict().keys()
    tensors: dict[str, Tensor] = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if name in saved:
            tensors[name] = tensor.detach()
    return tensors


def trainable_names(model: nn.Module) -> list[str]:
    """Return the names of the parameters that training changes."""
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def aliases(model: nn.Module) -> dict[str, str]:
    """Return the further names of tied tensors: name -> first name."""
    first: dict[int, str] = {}
    further: dict[str, str] = {}
    for names in (
        model.named_parameters(remove_duplicate=False),
        model.named_buffers(remove_duplicate=False),
    ):
        for name, tensor in names:
            if first.setdefault(id(tensor), name) != name:
                further[name] = first[id(tensor)]
    return further


@torch.no_grad()
def load(tensors: State, state: State) -> None:
    """Copy a state into live tensors."""
    for name, tensor in tensors.items():
        tensor.copy_(state[name])
