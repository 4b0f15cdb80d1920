"""A model to train: its parameters are views of one flat vector."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fednnnn_plugin.server.layout import Layout, ModelState


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the live parameters and persistent buffers, tied ones once."""
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    saved = model.state_dict().keys()
    return {name: tensor.detach() for name, tensor in tensors.items() if name in saved}


def layout_of(model: nn.Module) -> Layout:
    """Return where the tensors of a model stand: those that training changes in the vector."""
    trainable = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    return Layout(named_tensors(model), trainable)


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


class Replica:
    """A model whose trainable parameters are views of one vector ``[d]``.

    Args:
        model: it becomes the replica's own, and keeps its weights. Its floating tensors are of the
            layout's dtype.
        layout: of the model's state.
        channels_last: the input ``[n, c, h, w]`` is passed on in channels_last order, which all
            activations then take: the faster one on CPUs, for a model that takes any order.

    Attributes:
        model: the model.
        layout: of its state.
        vector: the trained weights ``[d]``.
        trained: its trainable parameters, in the order of the vector.
        views: the same memory, for arithmetic without autograd.
    """

    def __init__(self, model: nn.Module, layout: Layout, *, channels_last: bool = False) -> None:
        self.model = model
        self.layout = layout
        self.vector = layout.flatten(named_tensors(model))
        self.trained = [model.get_parameter(entry.name) for entry in layout.entries]
        self.views = list(layout.views(self.vector).values())
        for parameter, view in zip(self.trained, self.views, strict=True):
            parameter.data = view  # the same Parameter: what ties or hooks it stays
        self._hook = None
        if channels_last:
            # Not contiguous(): it leaves the strides of one channel, by which PyTorch goes.
            order = torch.channels_last
            self._hook = model.register_forward_pre_hook(
                lambda _, inputs: inputs[0].to(memory_format=order)
            )

    @property
    def state(self) -> ModelState:
        """The live tensors; the buffers those that the model has now."""
        tensors = named_tensors(self.model)
        return ModelState(self.vector, {name: tensors[name] for name in self.layout.buffers})

    def release(self) -> None:
        """Give the model back to whoever else calls it: inputs are passed on as they are."""
        if self._hook is not None:
            self._hook.remove()

    @torch.no_grad()
    def load(self, state: ModelState) -> None:
        """Copy a state in."""
        own = self.state
        own.vector.copy_(state.vector)
        for name, tensor in own.buffers.items():
            tensor.copy_(state.buffers[name])
