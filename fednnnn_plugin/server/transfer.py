"""Between the host's memory and a GPU's."""

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the CPU on a device; the host does not wait for a GPU's copy of it."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def to_host(tensor: Tensor) -> Tensor:
    """Return a tensor on the CPU, in a dtype of NumPy's; bfloat16 becomes float32.

    The host does not wait for a GPU's copy: the values are there once it has waited for something
    later of the same stream.
    """
    wide = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
    return wide.to("cpu", non_blocking=True)
