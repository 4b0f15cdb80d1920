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
            digest.update(f"{name} {tensor.layout} {part.dtype} {list(part.shape)};".encode())
            if not part.is_meta:  # it has no values
                flat = part.cpu().contiguous().reshape(-1)
                digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _dense(tensor: Tensor) -> Sequence[Tensor]:
    """Return what a tensor is made of, as a graph's adjacency is of indices and values."""
    if is_lazy(tensor):
        return ()
    tensor = tensor.detach()
    if tensor.is_nested:
        return tensor.unbind()
    if tensor.layout is torch.strided:
        plain = tensor.dequantize() if tensor.is_quantized else tensor
        return (plain.resolve_conj().resolve_neg(),)
    if tensor.is_mkldnn:
        return (tensor.to_dense(),)
    sparse = tensor.to_sparse_coo().coalesce()
    return torch.tensor(tensor.shape), sparse.indices(), sparse.values()
