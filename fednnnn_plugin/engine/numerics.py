"""PyTorch's global switches for the time of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fednnnn_plugin.client.local_sgd import Precision


@contextmanager
def numerics(precision: Precision) -> Iterator[None]:
    """Allow TF32 only if asked for, choose deterministic cuDNN kernels; restore both after."""
    switches = [
        (torch.backends.cuda.matmul, "allow_tf32", precision == "tf32"),
        (torch.backends.cudnn, "allow_tf32", precision == "tf32"),
        (torch.backends.cudnn, "deterministic", True),
        (torch.backends.cudnn, "benchmark", False),
    ]
    before = [getattr(owner, name) for owner, name, _ in switches]
    try:
        for owner, name, value in switches:
            setattr(owner, name, value)
        yield
    finally:
        for (owner, name, _), value in zip(switches, before, strict=True):
            setattr(owner, name, value)
