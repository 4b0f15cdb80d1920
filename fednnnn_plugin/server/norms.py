"""Euclidean norms whose bits do not depend on the number of threads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

#: Elements handled at a time on a CPU, so that scratch stays in the cache.
CHUNK = 524_288
_ROW = 4_096


def pieces(flat: Tensor) -> Iterable[Tensor]:
    """Split a flat tensor into cache-sized views; an accelerator takes it whole."""
    if flat.device.type != "cpu":
        return (flat,)
    return flat.split(CHUNK)


def chunk_square(chunk: Tensor) -> Tensor:
    """Return ``‖x‖₂²`` of a float64 chunk as a scalar tensor.

    PyTorch may cut one long reduction among threads, but reduces each row of a matrix on one: in
    rows, the order of additions is fixed.
    """
    whole = len(chunk) - len(chunk) % _ROW
    rows = torch.linalg.vector_norm(chunk[:whole].view(-1, _ROW), dim=1)
    return rows.square().sum() + torch.linalg.vector_norm(chunk[whole:]).square()


def squared_norm(tensor: Tensor) -> float:
    """Return ``‖x‖₂²`` in float64: ``inf`` or ``nan`` where an element or the sum is not finite."""
    squares = [
        chunk_square(piece.to(torch.float64)) for piece in pieces(tensor.detach().reshape(-1))
    ]
    return torch.stack(squares).sum().item()


def global_norm(tensors: Iterable[Tensor]) -> float:
    """Return the norm of several tensors taken as one vector, in float64."""
    return math.sqrt(sum(squared_norm(tensor) for tensor in tensors))


def owner(parameter: str) -> str:
    """Return the module that owns a parameter: ``"fc3"`` for ``"fc3.weight"``, ``""`` at the root.

    The names are those of ``torch.nn.Module.named_modules``.
    """
    return parameter.rpartition(".")[0]


def by_module(squares: Mapping[str, float]) -> dict[str, float]:
    """Turn squared norms of parameters into norms of the modules that own them.

    Weight and bias are one vector, so the squares of the modules add up to the whole model's.
    """
    sums: dict[str, float] = {}
    for name, square in squares.items():
        sums[owner(name)] = sums.get(owner(name), 0.0) + square
    return {module: math.sqrt(square) for module, square in sums.items()}
