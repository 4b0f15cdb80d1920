"""A model's state as one flat vector of what is trained, beside its buffers.

Names and shapes appear at the edges only: a user's ``state_dict``, records and files. In between a
model is a vector ``[d]``, a group of m clients a matrix ``[m, d]``, and the parameters are views.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

State = Mapping[str, Tensor]


@dataclass(frozen=True)
class Entry:
    """A trained parameter's place in the vector.

    Attributes:
        name: as in the ``state_dict``.
        shape: of the tensor.
        dtype: the model's own; the vector's may be wider.
        where: its elements in the vector.
    """

    name: str
    shape: torch.Size
    dtype: torch.dtype
    where: slice


@dataclass(frozen=True)
class ModelState:
    """A model: ``vector`` ``[d]`` and the buffers by name, or m models: ``[m, d]``, ``[m, …]``."""

    vector: Tensor
    buffers: dict[str, Tensor]

    def as_group(self) -> ModelState:
        """Return one model as a group of one: ``[1, d]`` and ``[1, …]``, the same memory."""
        buffers = {name: tensor.unsqueeze(0) for name, tensor in self.buffers.items()}
        return ModelState(self.vector.unsqueeze(0), buffers)


class Layout:
    """Where each entry of a model's state stands.

    The parameters of one module are neighbours, so that a module's norm is that of a slice; else
    they keep the order of the state. What is not trained counts as a buffer, frozen parameters
    included.

    Args:
        state: name -> tensor, each tensor once.
        trainable: the names of the parameters that training changes; of floating dtypes.

    Attributes:
        forms: the names of the whole state, in its order: shape and dtype of each.
        entries: the trained parameters, in the order of the vector.
        modules: the modules that own trained parameters, ``"fc3"`` of ``"fc3.weight"``, ``""`` at
            the root, and their elements in the vector.
        size: d.
        dtype: the vector's: float32, or the parameters' own where that is wider.
        buffers: the names of all else, in the order of the state.
    """

    def __init__(self, state: State, trainable: Collection[str]) -> None:
        wanted = set(trainable)
        self.forms = {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()}
        by_module: dict[str, list[str]] = {}
        for name in state:
            if name in wanted:
                by_module.setdefault(name.rpartition(".")[0], []).append(name)
        entries: list[Entry] = []
        self.modules: dict[str, slice] = {}
        self.dtype = torch.float32
        end = 0
        for module, names in by_module.items():
            begin = end
            for name in names:
                tensor = state[name]
                start, end = end, end + prod(tensor.shape)
                entries.append(Entry(name, tensor.shape, tensor.dtype, slice(start, end)))
                self.dtype = torch.promote_types(self.dtype, tensor.dtype)
            self.modules[module] = slice(begin, end)
        self.entries = tuple(entries)
        self.size = end
        self.buffers = tuple(name for name in state if name not in wanted)

    def flatten(self, state: State, dtype: torch.dtype | None = None) -> Tensor:
        """Return the trained parameters of a state as a new vector ``[d]``."""
        dtype = dtype or self.dtype
        parts = [state[entry.name].detach().reshape(-1).to(dtype) for entry in self.entries]
        return torch.cat(parts) if parts else torch.empty(0, dtype=dtype)

    def gather(self, state: State) -> ModelState:
        """Return a state as vector and buffers, in memory of their own."""
        buffers = {
            name: state[name].detach().clone(memory_format=torch.contiguous_format)
            for name in self.buffers
        }
        return ModelState(self.flatten(state), buffers)

    def views(self, matrix: Tensor) -> dict[str, Tensor]:
        """Return the parameters in ``[…, d]`` as views ``[…, *shape]``, by name."""
        clients = matrix.shape[:-1]
        return {
            entry.name: matrix[..., entry.where].view(clients + entry.shape)
            for entry in self.entries
        }

    def rounded(self, vector: Tensor) -> Tensor:
        """Return a vector with each element rounded to its parameter's own dtype."""
        if all(entry.dtype == vector.dtype for entry in self.entries):
            return vector
        parts = [vector[entry.where].to(entry.dtype).to(vector.dtype) for entry in self.entries]
        return torch.cat(parts)

    def state_dict(self, state: ModelState) -> dict[str, Tensor]:
        """Return a model by names, in the order and the dtypes of the state that this is of.

        Parameters of the vector's dtype are views of it; buffers are those of ``state``.
        """
        views = self.views(state.vector)
        dtypes = {entry.name: entry.dtype for entry in self.entries}
        return {
            name: views[name].to(dtypes[name]) if name in views else state.buffers[name]
            for name in self.forms
        }
