"""A model's state as FedML sends it: under every name, with FedML's noise."""

from collections import OrderedDict
from typing import Any

import torch
from fedml.core.dp.fedml_differential_privacy import FedMLDifferentialPrivacy
from torch import Tensor, nn

from fednnnn_plugin.assembly.model_check import averaged_copy
from fednnnn_plugin.client.replica import aliases, named_tensors
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.server.admission import check_client
from fednnnn_plugin.server.layout import State


def served_copy(model: Any) -> nn.Module:
    """Return a copy of a model, or refuse one that the server rule cannot move."""
    if not isinstance(model, nn.Module):
        raise UserError("model", type(model).__name__, "must be a torch.nn.Module")
    copied = averaged_copy(model, "model", torch.float64)
    if other := model.state_dict().keys() - named_tensors(model).keys() - aliases(model).keys():
        raise UserError("model", min(other), "must be a parameter or a buffer")
    return copied


# FedML's own models that take images without channels, by class, and a view of ours that fits.
_OTHER_IMAGES = {
    "LogisticRegression": "flat images [n, pixels]; put nn.Flatten() before it",
    "CNN_DropOut": "images [n, 28, 28]; put nn.Flatten(1, 2) before it",
    "CNN_OriginalFedAvg": "images [n, 28, 28]; put nn.Flatten(1, 2) before it",
}


def refuse_images_of_other_form(model: nn.Module, images: Tensor) -> None:
    """Refuse a model of FedML's for images of another form than ours, ``[n, C, H, W]``."""
    takes = _OTHER_IMAGES.get(type(model).__name__)
    if takes and type(model).__module__.startswith("fedml.") and images.ndim == 4:
        form = ", ".join(map(str, images.shape[1:]))
        raise UserError(
            "model_args.model",
            f"FedML's {type(model).__name__}: our images are [n, {form}], and it takes {takes}, "
            "in an nn.Sequential, or name a model of ours (nnnn_mnist)",
        )


def client_state(model: nn.Module, state: Any) -> State:
    """Return a client's model, with our frozen parameters where it lacks them, as LoRA's does.

    Tied tensors are in it once. One that is another model than ours is refused, before FedML's code
    meets it.
    """
    parameters = model.named_parameters(remove_duplicate=False)
    frozen = {name: p.detach() for name, p in parameters if not p.requires_grad}
    forms = {name: (tensor.shape, tensor.dtype) for name, tensor in model.state_dict().items()}
    check_client(state, forms, frozen)
    state = OrderedDict((name, state.get(name, frozen.get(name))) for name in forms)
    for name, first in aliases(model).items():
        one, other = state.pop(name), state[first]
        if not torch.equal(one.nan_to_num(), other.to(one.device).nan_to_num()):
            raise UserError(name, f"differs from {first}, to which it is tied")
    return state


def whole_state(
    model: nn.Module, state: State, device: torch.device | None = None
) -> OrderedDict[str, Tensor]:
    """Return a copy of a state under all of the model's names, in its dtypes, on one device."""
    tied = aliases(model)
    return OrderedDict(
        (name, state[tied.get(name, name)].detach().to(device, tensor.dtype, copy=True))
        for name, tensor in model.state_dict().items()
        if isinstance(tensor, Tensor)  # a simulation's may have more
    )


def with_noise(model: nn.Module, state: State, *, local: bool) -> OrderedDict[str, Tensor]:
    """Return a copy of a model's state with FedML's noise on its floating point entries.

    Tied tensors get one noise. No running variance is negative, of which batch normalisation would
    make NaN; to clip them after the noise costs no privacy.
    """
    privacy, tied = FedMLDifferentialPrivacy.get_instance(), aliases(model)
    floating = OrderedDict(
        (name, tensor.detach().cpu())
        for name, tensor in state.items()
        if tensor.is_floating_point() and name not in tied
    )
    noised = (privacy.add_local_noise if local else privacy.add_global_noise)(floating)
    added = {name: torch.as_tensor(noise).to(state[name].device) for name, noise in noised.items()}
    whole = whole_state(model, {**state, **added})
    for name, tensor in whole.items():
        if name.rpartition(".")[2] == "running_var":
            tensor.clamp_(min=0.0)
    return whole
