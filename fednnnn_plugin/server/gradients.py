"""What the server rules read of their round: pseudo-gradients, norms, torch's closure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.server.norms import squared_norm

Params = Iterable[Tensor] | Iterable[dict[str, Any]]
Closure = Callable[[], float]

#: ``N ≤ NEAR_ZERO · E`` counts as N = 0: below it float32 leaves only rounding noise in S.
NEAR_ZERO = 1e-6


def loss_of(closure: Closure | None) -> float | None:
    """Call the closure that torch's optimizers take; None where there is none."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


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


def required(optimizer: Optimizer, group: dict[str, Any], name: str) -> float:
    """Return a coefficient of a parameter group, or raise :class:`UserError` where it is None."""
    if group[name] is None:
        rule = type(optimizer).__name__
        raise UserError(f"{rule}.step: {name} is missing: set train_args.{name}")
    return float(group[name])


def update_norm(optimizer: Optimizer) -> float:
    """Return ``N = ‖S‖₂`` over all parameters that have a gradient, ``-S``."""
    return math.sqrt(
        sum(
            squared_norm(parameter.grad)
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        )
    )


def norm_ratio(optimizer: Optimizer, mean_client_norm: float | None) -> float:
    """Return ``E / N``, or 0 where N is near 0 (``N ≤ 1e-6 E``, or ``E = 0``)."""
    client_norm = measured(optimizer, "mean_client_norm", "E", mean_client_norm)
    mean_update_norm = update_norm(optimizer)
    if mean_update_norm <= NEAR_ZERO * client_norm or client_norm == 0.0:
        return 0.0
    return client_norm / mean_update_norm


@torch.no_grad()
def move(optimizer: Optimizer, factors: Iterable[tuple[float, float]]) -> None:
    """Apply ``d ← γ d + c S; w ← w + η d`` to each parameter group.

    Args:
        optimizer: its groups have ``lr`` η; its gradients are ``-S``.
        factors: ``(c, γ)`` of each group; no ``d`` is kept where γ is 0.
    """
    for group, (scale, gamma) in zip(optimizer.param_groups, factors, strict=True):
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            step = parameter.grad * -scale
            if gamma > 0.0:
                state = optimizer.state[parameter]
                if "momentum" in state:
                    step = state["momentum"].mul_(gamma).add_(step)
                else:
                    state["momentum"] = step
            parameter.add_(step, alpha=group["lr"])
