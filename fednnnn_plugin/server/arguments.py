"""What the server rules take: numbers in their range, what a round measured, torch's closure."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.server.norms import global_norm

Params = Iterable[Tensor] | Iterable[dict[str, Any]]


def checked_positive(name: str, value: float) -> float:
    """Return a finite number greater than 0, or raise :class:`UserError`."""
    if not 0 < _number(value) < math.inf:
        raise UserError(f"{name}: {value!r}: must be finite and greater than 0")
    return value


def checked_decay(name: str, value: float) -> float:
    """Return a number in [0, 1), or raise :class:`UserError`."""
    if not 0 <= _number(value) < 1:
        raise UserError(f"{name}: {value!r}: must be at least 0 and less than 1")
    return value


def measured(optimizer: Optimizer, name: str, symbol: str, value: float | None) -> float:
    """Return what a rule's step needs of its round, or raise :class:`UserError`."""
    rule = type(optimizer).__name__
    if value is None:
        raise UserError(
            f"{rule}.step: {name} ({symbol}) is missing: FedML's FedOpt does not give it; set "
            f"train_args.federated_optimizer: {rule} instead of server_optimizer: {rule}"
        )
    if not (math.isfinite(value) and value >= 0):
        raise UserError(f"{rule}.step: {name}: {value!r}: must be finite and at least 0")
    return value


def update_norm(optimizer: Optimizer) -> float:
    """Return ``N = ‖S‖₂`` over all parameters that have a gradient, ``-S``."""
    return global_norm(
        parameter.grad
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    )


def loss_of(closure: Callable[[], float] | None) -> float | None:
    """Call the closure that torch's optimizers take; None where there is none."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def _number(value: object) -> float:
    """Return a number; NaN for what is none: PyYAML, and so FedML, reads 5e-4 as a string."""
    return float(value) if isinstance(value, numbers.Real) else math.nan
