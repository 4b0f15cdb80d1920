"""From the host's memory to a GPU's."""

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the CPU on a device; the host does not wait for a GPU's copy of it."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
