"""A model's state as one flat vector of what is trained, beside its buffers.

Names and shapes appear at the edges only: a user's ``state_dict``, records and files. In between a
model is a vector ``[d]``, a group of m clients a matrix ``[m, d]``, and the parameters are views.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import chain

import torch
from torch import Tensor

State = Mapping[str, Tensor]
_STATISTICS = ("running_mean", "running_var")


def trained_by_default(state: State) -> list[str]:
    """Return the names of what a state tells to be trained: floating point, no batch statistics."""
    return [
        name
        for name, tensor in state.items()
        if tensor.is_floating_point() and name.rpartition(".")[2] not in _STATISTICS
    ]


@dataclass(frozen=True)
class Entry:
    """A tensor's place in a vector."""

    name: str
    shape: torch.Size
    where: slice


@dataclass(frozen=True)
class ModelState:
    """A model: ``vector`` ``[d]`` and the buffers by name, or m models: ``[m, d]``, ``[m, …]``."""

    vector: Tensor
    buffers: dict[str, Tensor]

    @property
    def tensors(self) -> list[Tensor]:
        """The vector and the buffers."""
        return [self.vector, *self.buffers.values()]

    def map(self, function: Callable[[Tensor], Tensor]) -> "ModelState":
        """Return what a function gives of the vector and of each buffer."""
        buffers = {name: function(tensor) for name, tensor in self.buffers.items()}
        return ModelState(function(self.vector), buffers)

    def many(self, count: int) -> "ModelState":
        """Return memory for so many models of this one's form: ``[m, d]`` and ``[m, …]``."""
        return self.map(lambda tensor: tensor.new_empty(count, *tensor.shape))

    def first(self, count: int) -> "ModelState":
        """Return the first of m models, the same memory."""
        return self.map(lambda tensor: tensor[:count])

    def as_group(self) -> "ModelState":
        """Return one model as a group of one: ``[1, d]`` and ``[1, …]``, the same memory."""
        return self.map(lambda tensor: tensor.unsqueeze(0))


class Block:
    """Some tensors of a state, one after the other in a vector of ``size`` elements."""

    def __init__(self, state: State, names: Iterable[str], dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.size = 0
        self.entries: list[Entry] = []
        for name in names:
            start, self.size = self.size, self.size + state[name].numel()
            self.entries.append(Entry(name, state[name].shape, slice(start, self.size)))

    def views(self, matrix: Tensor) -> dict[str, Tensor]:
        """Return the tensors in ``[…, size]`` as views ``[…, *shape]``, by name."""
        # Split in one operation: its gradient is one concatenation.
        parts = matrix.split([e.shape.numel() for e in self.entries], dim=-1)
        models = matrix.shape[:-1]
        pairs = zip(self.entries, parts, strict=True)
        return {e.name: part.view(models + e.shape) for e, part in pairs}

    @torch.no_grad()
    def flatten(
        self, state: State, dtype: torch.dtype | None = None, models: tuple[int, ...] = ()
    ) -> Tensor:
        """Return tensors ``[*models, *shape]`` as a new matrix ``[*models, size]``.

        Its dtype is the block's, or a tensor's own where that is wider, unless it is given.
        """
        parts = [state[e.name].reshape(*models, e.shape.numel()) for e in self.entries]
        matrix = torch.cat(parts, -1) if parts else torch.empty(*models, 0)
        return matrix.to(dtype or torch.promote_types(matrix.dtype, self.dtype))


class Layout(Block):
    """The place of each entry of a model's state: trained ones are in the vector, in this order.

    The parameters of one module are neighbours, so that a module's norm is that of a slice; else
    they keep the order of the state. What is not trained is a buffer, frozen parameters included.

    Attributes:
        forms: shape and dtype of each entry of the state, in its order.
        modules: the modules that own trained parameters, ``"fc3"`` of ``"fc3.weight"``, ``""`` at
            the root, and their elements in the vector.
        dtype: the vector's: float32, or the parameters' own where that is wider.
        buffers: the names of all that is not trained; ``floating`` and ``integer`` divide them.
    """

    def __init__(self, state: State, trainable: Collection[str]) -> None:
        self.forms = {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()}
        wanted = set(trainable)
        by_module: dict[str, list[str]] = {}
        for name in state:
            if name in wanted:
                by_module.setdefault(name.rpartition(".")[0], []).append(name)
        names = list(chain.from_iterable(by_module.values()))
        dtypes = (state[name].dtype for name in names)
        super().__init__(state, names, reduce(torch.promote_types, dtypes, torch.float32))
        places = iter(self.entries)
        self.modules: dict[str, slice] = {}
        for module, own in by_module.items():
            where = [next(places).where for _ in own]
            self.modules[module] = slice(where[0].start, where[-1].stop)
        self.buffers = [name for name in state if name not in wanted]
        floating = [name for name in self.buffers if state[name].is_floating_point()]
        self.floating = Block(state, floating, torch.float64)
        self.integer = Block(state, [n for n in self.buffers if n not in floating], torch.int64)

    def gather(self, state: State) -> ModelState:
        """Return a state as vector and buffers, in memory of their own."""
        buffers = {name: state[name].detach().contiguous().clone() for name in self.buffers}
        return ModelState(self.flatten(state), buffers)

    def taken(self, state: State) -> ModelState:
        """Return a client's model as vector and buffers, those that it has, in the model's dtypes.

        In them a wider client's buffer may overflow; the vector may be wider than the layout's.
        """
        there = [name for name in self.buffers if name in state]
        buffers = {name: state[name].detach().to(self.forms[name][1]) for name in there}
        return ModelState(self.flatten(state), buffers)

    def rounded(self, vector: Tensor) -> Tensor:
        """Return a vector with each element rounded to its parameter's own dtype."""
        views = self.views(vector).items()
        return self.flatten({name: view.to(self.forms[name][1]) for name, view in views})

    def state_dict(self, model: ModelState) -> dict[str, Tensor]:
        """Return a model by names, in the order and the dtypes of the state that this is of.

        Parameters of the vector's dtype are views of it; buffers are the model's own.
        """
        named = self.views(model.vector) | model.buffers
        return {name: named[name].to(dtype) for name, (_, dtype) in self.forms.items()}
