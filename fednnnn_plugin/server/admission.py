"""What may enter an aggregate: models of a known form, weights that are numbers."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Collection, Iterable, Mapping

import torch
from torch import Tensor

from fednnnn_plugin.errors import UserError

_FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_INTEGER = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)


def check_global(state: Mapping[str, Tensor], trainable: Collection[str]) -> None:
    """Refuse a global state whose entries cannot be averaged.

    Raises:
        UserError: a trainable name that is not in the state or not of a floating dtype; a buffer
            that is neither floating nor integer.
    """
    if missing := set(trainable) - state.keys():
        raise UserError(f"UpdateAccumulator: trainable: {_listed(missing)}: not in the state")
    for name, tensor in state.items():
        allowed = _FLOATING if name in trainable else _FLOATING + _INTEGER
        if tensor.dtype not in allowed:
            raise UserError(
                f"UpdateAccumulator: {name}: {tensor.dtype}: must be float16, bfloat16, float32 or "
                "float64, or for a buffer an integer of at most 64 bits or bool"
            )


def check_client(state: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> None:
    """Refuse a client's model whose form is not the global one's.

    Floating dtypes may differ from the global ones; all others are the same.

    Raises:
        UserError: no mapping, missing or extra names, another shape or kind of number, no data.
    """
    if not isinstance(state, Mapping):
        raise UserError(f"client model: {type(state).__name__}: must map names to tensors")
    if state.keys() != like.keys():
        raise UserError(
            f"client model: missing entries: {_listed(like.keys() - state.keys())}; unknown "
            f"entries: {_listed(state.keys() - like.keys())}"
        )
    for name, ours in like.items():
        theirs = state[name]
        if not isinstance(theirs, Tensor):
            raise UserError(f"client model: {name}: {type(theirs).__name__}: must be a tensor")
        if theirs.shape != ours.shape:
            raise UserError(
                f"client model: {name}: shape {tuple(theirs.shape)}: must be {tuple(ours.shape)}"
            )
        if theirs.dtype != ours.dtype and not {theirs.dtype, ours.dtype} <= set(_FLOATING):
            raise UserError(f"client model: {name}: {theirs.dtype}: must be {ours.dtype}")
        if theirs.layout is not torch.strided or theirs.is_meta:
            raise UserError(
                f"client model: {name}: {theirs.layout} on {theirs.device}: must be a dense tensor "
                "that holds data"
            )


def checked_weight(weight: float) -> float:
    """Return a client's weight as a float.

    Raises:
        UserError: it is no number, not finite or not positive.
    """
    try:
        value = math.nan if isinstance(weight, (bool, str, bytes)) else float(weight)
    except OverflowError:
        raise UserError("client weight: beyond float64: must be a positive finite number") from None
    except (TypeError, ValueError, RuntimeError):
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        shown = " ".join(reprlib.repr(weight).split())
        raise UserError(f"client weight: {shown}: must be a positive finite number")
    return value


def _listed(names: Iterable[object]) -> str:
    shown = sorted(map(reprlib.repr, names))
    more = f" and {len(shown) - 5} more" if len(shown) > 5 else ""
    return (", ".join(shown[:5]) or "none") + more
