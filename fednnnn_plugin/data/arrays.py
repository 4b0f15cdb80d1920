"""A user's arrays as tensors on the CPU."""

import numpy as np
import torch
from torch import Tensor

from fednnnn_plugin.data.images import has_channels_last
from fednnnn_plugin.data.tables import is_column, whole_column
from fednnnn_plugin.errors import UserError, reason, shown

_ALLOWED = (
    "must be floating, int64, or images: uint8 [n, C, H, W]; give x.astype('float32') of numbers, "
    "x.astype('int64') of tokens, x[:, None] of grey images"
)


def is_array(value: object) -> bool:
    """Tell whether a value is a tensor or can be read as an array, as a column of a table can."""
    if isinstance(value, Tensor) or is_column(value):
        return True
    return hasattr(value, "__array__") and not np.isscalar(value)


def as_tensor(value: object, where: str) -> Tensor:
    """Bring a tensor or an array to the CPU."""
    if not is_array(value):
        raise UserError(where, shown(value), "must be a tensor or a NumPy array")
    try:
        if isinstance(value, Tensor):
            if value.is_nested or value.is_quantized:
                raise TypeError("must be neither nested nor quantised")
            value = value.detach()
            return (value.clone() if value.is_inference() else value).to("cpu").contiguous()
        if isinstance(value, np.ma.MaskedArray):
            raise TypeError("must not be masked")
        array = np.asarray(whole_column(value))
        if array.dtype.kind not in "biufc":
            table = hasattr(value, "columns")
            remedy = ": of a table of numbers give x.astype('float32')" if table else ""
            raise TypeError(f"{array.dtype}: must be numbers{remedy}")
        return torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        raise UserError(where, f"cannot be used: {reason(error)}") from error


def checked_inputs(value: object, where: str) -> Tensor:
    """Check inputs: floating and finite, returned as float32; int64; or uint8 images."""
    tensor = as_tensor(value, where)
    if not tensor.ndim or not tensor.numel():
        raise UserError(where, kind_of(tensor), "must be [n, ...], not empty")
    if tensor.is_floating_point():
        return check_finite(tensor, where)
    if tensor.dtype == torch.uint8 and tensor.ndim == 4:
        if has_channels_last(tensor.shape):
            raise UserError(
                where,
                f"{kind_of(tensor)}: looks like [n, H, W, C]; images must be [n, C, H, W]",
                "give x.transpose(0, 3, 1, 2), or x.permute(0, 3, 1, 2) of a tensor",
            )
    elif tensor.dtype != torch.int64:
        raise UserError(where, kind_of(tensor), _ALLOWED)
    return tensor


def check_finite(tensor: Tensor, where: str) -> Tensor:
    """Return numbers as float32."""
    tensor = tensor.float()
    # isfinite() of all would take more memory than the data.
    if tensor.numel() and not torch.stack(tensor.aminmax()).isfinite().all():
        raise UserError(where, "has NaN or infinite values (in float32)")
    return tensor


def is_integral(tensor: Tensor) -> bool:
    """Tell whether a tensor holds integers that int64 holds too."""
    return torch.can_cast(tensor.dtype, torch.int64) and tensor.dtype != torch.bool


def kind_of(tensor: Tensor) -> str:
    """Name a tensor's dtype and shape."""
    return f"{tensor.dtype} of {list(tensor.shape)}"
