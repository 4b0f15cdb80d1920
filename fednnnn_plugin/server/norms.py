"""Euclidean norms in float64, of vectors and of their parts."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fednnnn_plugin.server.sum import pieces

_ROW = 4_096  # divides a piece


def squared_norm(vector: Tensor) -> Tensor:
    """Return ``‖x‖₂²`` of a vector as a scalar: ``inf`` or ``nan`` where it is not finite.

    PyTorch may cut one long reduction among threads, but reduces each row of a matrix on one: in
    rows, the order of additions is fixed.
    """
    squares = []
    for where in pieces(len(vector), vector.device):
        piece = vector[where]
        whole = len(piece) - len(piece) % _ROW
        rows = torch.linalg.vector_norm(piece[:whole].view(-1, _ROW), dim=1, dtype=torch.float64)
        rest = torch.linalg.vector_norm(piece[whole:], dtype=torch.float64)
        squares.append(rows.square().sum() + rest.square())
    return torch.stack(squares).sum()


def part_norms(matrix: Tensor, parts: Mapping[str, slice]) -> Tensor:
    """Return the norm of each part of a vector ``[d]``, or of each row of ``[m, d]``.

    The parts are neighbours, and all of it.
    """
    if matrix.ndim == 2 and len(matrix) == 1:
        return part_norms(matrix[0], parts).unsqueeze(0)
    if not parts:
        return matrix.new_zeros(*matrix.shape[:-1], 0, dtype=torch.float64)
    pieces_of = matrix.split([where.stop - where.start for where in parts.values()], dim=-1)
    if matrix.ndim == 1:
        return torch.stack([squared_norm(piece).sqrt() for piece in pieces_of])
    how: Any = {"dim": 1, "keepdim": True, "dtype": torch.float64}
    return torch.cat([torch.linalg.vector_norm(piece, **how) for piece in pieces_of], 1)
