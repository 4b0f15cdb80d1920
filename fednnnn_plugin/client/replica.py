"""A model to train: its parameters are views of one flat vector."""

import torch
from torch import Tensor, nn

from fednnnn_plugin.errors import UserError, printable
from fednnnn_plugin.server.admission import check_client
from fednnnn_plugin.server.layout import Layout, ModelState

_MUST_STAY = (
    "must stay: make it in __init__, change its values in place, or pass a batch through the model "
    "before the run; a buffer that is a cache or that is to change is registered with "
    "persistent=False"
)


def saved_tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Return the live parameters and persistent buffers, tied ones by each of their names."""
    parameters = model.named_parameters(remove_duplicate=False)
    buffers = model.named_buffers(remove_duplicate=False)
    saved = model.state_dict().keys()
    return [(name, tensor) for name, tensor in (*parameters, *buffers) if name in saved]


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the live parameters and persistent buffers, tied ones once."""
    further = aliases(model)
    return {name: tensor.detach() for name, tensor in saved_tensors(model) if name not in further}


def layout_of(model: nn.Module) -> Layout:
    """Return where the tensors of a model stand: those that training changes in the vector."""
    trainable = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    return Layout(named_tensors(model), trainable)


def aliases(model: nn.Module) -> dict[str, str]:
    """Return the further names of tied tensors: name -> first name."""
    first: dict[int, str] = {}
    return {
        name: first[id(tensor)]
        for name, tensor in saved_tensors(model)
        if first.setdefault(id(tensor), name) != name
    }


def _stay() -> None:
    """Do nothing."""


class Replica:
    """A model whose trained parameters, in the layout's order, are views of one vector ``[d]``.

    The model becomes the replica's own, and keeps its weights: all of the layout's dtype. Recurrent
    layers leave them where they are, which on a GPU ``flatten_parameters()`` would not.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model, self.layout = model, layout_of(model)
        self.vector = self.layout.flatten(named_tensors(model))
        self.trained = [model.get_parameter(entry.name) for entry in self.layout.entries]
        views = self.layout.views(self.vector).values()
        for parameter, view in zip(self.trained, views, strict=True):
            parameter.data = view  # the same Parameter: what ties or hooks it stays
        for module in model.modules():
            if isinstance(module, nn.RNNBase):
                vars(module)["flatten_parameters"] = _stay

    @property
    def state(self) -> ModelState:
        """The live tensors; the buffers those that the model has now."""
        tensors = named_tensors(self.model)
        return ModelState(self.vector, {name: tensors[name] for name in self.layout.buffers})

    def check_trained(self, where: str = "model_args.model") -> None:
        """Refuse a model of which training made, removed or replaced what a client sends."""
        views = self.layout.views(self.vector)
        before = {(n, id(p), views[n].data_ptr()) for n, p in zip(views, self.trained, strict=True)}
        named = [(name, each) for name, each in self.model.named_parameters() if each.requires_grad]
        other = [name for name, *_ in before ^ {(n, id(p), p.data_ptr()) for n, p in named}]
        now = named_tensors(self.model)
        if other := sorted({*other, *(now.keys() ^ self.layout.forms.keys())}):
            raise UserError(
                f"{where}: {printable(other[0])}",
                "was made, removed or replaced in training, or began or ceased to require a "
                "gradient",
                _MUST_STAY,
            )
        try:
            check_client(now, self.layout.forms, where=where)
        except UserError as error:
            raise UserError(str(error), allowed=_MUST_STAY) from None

    @torch.no_grad()
    def load(self, state: ModelState) -> None:
        """Copy a state in."""
        self.vector.copy_(state.vector)
        for name, tensor in self.state.buffers.items():
            tensor.copy_(state.buffers[name])
