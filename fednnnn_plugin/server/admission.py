"""What may enter an aggregate: models of a known form, weights that are numbers."""

import math
import reprlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from fednnnn_plugin.errors import UserError, some_of

_FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_INTEGER = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)
AVERAGED = (*_FLOATING, *_INTEGER)
OF_AVERAGED = (
    "float16, bfloat16, float32 or float64, or for a buffer bool, uint8 or a signed integer"
)


def check_global(state: Mapping[str, Tensor], trainable: Collection[str]) -> None:
    """Refuse a global state whose entries cannot be averaged, or lack what is trained."""
    if not isinstance(state, Mapping):
        raise UserError("UpdateAccumulator", type(state).__name__, "must map names to tensors")
    if missing := set(trainable) - state.keys():
        raise UserError("UpdateAccumulator", f"trainable: {_listed(missing)}: not in the state")
    for name, tensor in state.items():
        check_dense(tensor, f"UpdateAccumulator: {name}")
        if tensor.dtype not in (_FLOATING if name in trainable else AVERAGED):
            raise UserError(
                "UpdateAccumulator", f"{name}: {tensor.dtype}", f"must be {OF_AVERAGED}"
            )


def check_client(
    state: Mapping[str, Tensor],
    forms: Mapping[str, tuple[torch.Size, torch.dtype]],
    optional: Collection[str] = (),
    where: str = "client model",
) -> None:
    """Refuse a client's model of another form; between floating dtypes there is no difference.

    The ``optional`` entries may be missing.
    """
    if not isinstance(state, Mapping):
        raise UserError(where, type(state).__name__, "must map names to tensors")
    missing, unknown = forms.keys() - state.keys() - set(optional), state.keys() - forms.keys()
    if missing or unknown:
        raise UserError(
            where,
            f"missing entries: {_listed(missing)}; unknown entries: {_listed(unknown)}",
        )
    for name in (name for name in forms if name in state):
        (shape, dtype), theirs, place = forms[name], state[name], f"{where}: {name}"
        check_dense(theirs, place)
        if theirs.shape != shape:
            raise UserError(place, f"shape {tuple(theirs.shape)}", f"must be {tuple(shape)}")
        if theirs.dtype != dtype and not {theirs.dtype, dtype} <= set(_FLOATING):
            raise UserError(place, theirs.dtype, f"must be {dtype}")


def check_start(state: Mapping[str, Tensor], trainable: Iterable[str], where: str) -> None:
    """Refuse a global state from which no client's update is finite."""
    for name in trainable:
        if not state[name].isfinite().all():
            allowed = "must be finite; what is not trained, as a mask, trainable must leave out"
            raise UserError(where, f"{name}: not finite", allowed)


def check_dense(tensor: object, where: str) -> None:
    """Refuse what is not a tensor, or a sparse or nested one, or one without values."""
    if not isinstance(tensor, Tensor):
        raise UserError(where, type(tensor).__name__, "must be a tensor")
    if tensor.is_nested or tensor.layout is not torch.strided or tensor.is_meta:
        kind = "nested" if tensor.is_nested else tensor.layout
        raise UserError(
            where, f"{kind} on {tensor.device}", "must be a dense tensor that holds data"
        )


def checked_positive(name: str, given: float) -> float:
    """Return a number as a float, if it is positive and finite."""
    value = as_float(given)
    if not (math.isfinite(value) and value > 0):
        shown = " ".join(reprlib.repr(given).split())
        raise UserError(name, shown, "must be a positive finite number")
    return value


def as_float(value: Any) -> float:
    """Return a number, also NumPy's or torch's, as a float; NaN of a flag, a text and the rest."""
    try:
        return math.nan if isinstance(value, bool | str | bytes) else float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return math.nan


def _listed(names: Iterable[object]) -> str:
    return some_of(sorted(map(reprlib.repr, names)), 5) or "none"
