"""Euclidean norms in float64, of vectors and of their parts."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

_ROW = 4_096
_PIECE = 32 * _ROW


def squared_norm(tensor: Tensor) -> float:
    """Return ``‖x‖₂²``: ``inf`` or ``nan`` where an element or the sum is not finite."""
    return _square(tensor.detach().reshape(-1)).item()


def part_norms(vector: Tensor, parts: Mapping[str, slice]) -> Tensor:
    """Return the norm of each part of a vector ``[d]``: float64 ``[len(parts)]``.

    The bits do not depend on the number of threads.
    """
    squares = [_square(vector[where]) for where in parts.values()]
    return torch.stack(squares).sqrt() if squares else vector.new_zeros(0, dtype=torch.float64)


def row_part_norms(matrix: Tensor, parts: Mapping[str, slice]) -> Tensor:
    """Return the norm of each part of each row of ``[m, d]``: float64 ``[m, len(parts)]``."""
    norms = [
        torch.linalg.vector_norm(matrix[:, where], dim=1, dtype=torch.float64)
        for where in parts.values()
    ]
    return torch.stack(norms, 1) if norms else matrix.new_zeros(len(matrix), 0).double()


def _square(vector: Tensor) -> Tensor:
    """Return ``‖x‖₂²`` as a scalar tensor.

    PyTorch may cut one long reduction among threads, but reduces each row of a matrix on one: in
    rows, the order of additions is fixed. On a CPU it goes through pieces, of which PyTorch makes
    float64 copies that fit the caches.
    """
    length = _PIECE if vector.device.type == "cpu" else max(len(vector), 1)
    squares = []
    for piece in vector.split(length):
        whole = len(piece) - len(piece) % _ROW
        rows = torch.linalg.vector_norm(piece[:whole].view(-1, _ROW), dim=1, dtype=torch.float64)
        rest = torch.linalg.vector_norm(piece[whole:], dtype=torch.float64)
        squares.append(rows.square().sum() + rest.square())
    return torch.stack(squares).sum()
