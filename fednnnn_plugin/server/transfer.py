"""Between the host's memory and a GPU's."""

from typing import Any

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


class Arriving:
    """Numbers on their way to the host, which waits for them when it reads them.

    It waits for nothing that a GPU was given to compute after them.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._there, self._event = to_host(tensor), None
        if tensor.device.type == "cuda":
            self._event = torch.cuda.current_stream(tensor.device).record_event()

    def tolist(self) -> Any:
        """Return the numbers, as :meth:`torch.Tensor.tolist` does."""
        if self._event:
            self._event.synchronize()
        return self._there.tolist()
