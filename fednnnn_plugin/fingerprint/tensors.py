"""The digest of tensors."""

from collections.abc import Iterable, Sequence
from hashlib import blake2b

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

BYTES = 16  # of a digest


def tensors_digest(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Return a digest of tensors: their names, dtypes, shapes and bytes."""
    digest = blake2b(digest_size=BYTES)
    for name, tensor in tensors:
        for part in _dense(tensor):
            digest.update(f"{name} {part.dtype} {list(part.shape)};".encode())
            if not part.is_meta:  # it has no values
                flat = part.cpu().contiguous().reshape(-1)
                digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _dense(tensor: Tensor) -> Sequence[Tensor]:
    """Return what a tensor is made of, as a graph's adjacency is of indices and values."""
    if is_lazy(tensor):
        return ()
    tensor, size = tensor.detach(), torch.tensor(tensor.shape) if not tensor.is_nested else None
    if size is None:
        return tensor.unbind()
    parts: tuple[Tensor, ...]
    match tensor.layout:
        case torch.sparse_coo:
            tensor = tensor.coalesce()
            parts = tensor.indices(), tensor.values()
        case torch.sparse_csr | torch.sparse_bsr:
            parts = tensor.crow_indices(), tensor.col_indices(), tensor.values()
        case torch.sparse_csc | torch.sparse_bsc:
            parts = tensor.ccol_indices(), tensor.row_indices(), tensor.values()
        case torch.strided:
            plain = tensor.dequantize() if tensor.is_quantized else tensor
            return (plain.resolve_conj().resolve_neg(),)
        case _:  # mkldnn's
            return (tensor.to_dense(),)
    return size, *parts
