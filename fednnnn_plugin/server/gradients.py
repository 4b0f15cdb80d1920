"""What the server rules read of their round, pseudo-gradients and norms, and the step of most."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.server.norms import squared_norm

Params = Iterable[Tensor] | Iterable[dict[str, Any]]

#: ``N ≤ NEAR_ZERO · E`` counts as N = 0. Where updates cancel, S is rounding noise of about
#: ``eps ‖w_t‖ / ‖Δ‖`` times E, which may be more than that: of float32 models with ``‖Δ‖`` far
#: below ``‖w_t‖``, and of half precision.
NEAR_ZERO = 1e-6


def required_value(
    optimizer: Optimizer, name: str, value: float | None, below: float = math.inf
) -> float:
    """Return what a step cannot do without: a coefficient of a group, a measure of the round."""
    rule = type(optimizer).__name__
    if value is None:
        raise UserError(
            f"{rule}.step",
            f"{name} is missing: FedML's FedOpt does not give it",
            f"set train_args.federated_optimizer: {rule}, not server_optimizer: {rule}",
        )
    if not 0 <= value < below:
        end = "finite" if below == math.inf else f"below {below:g}"
        raise UserError(f"{rule}.step", f"{name}: {value!r}", f"must be at least 0 and {end}")
    return float(value)


def check_finite(optimizer: Optimizer) -> None:
    """Refuse a gradient that is not finite."""
    if not all(gradient.isfinite().all() for gradient in _gradients(optimizer)):
        raise UserError(f"{type(optimizer).__name__}.step", "the gradient is not finite")


def update_norm(optimizer: Optimizer) -> float:
    """Return ``N = ‖S‖₂`` over all parameters that have a gradient, ``-S``."""
    return math.sqrt(sum(squared_norm(g.flatten()).item() for g in _gradients(optimizer)))


def _gradients(optimizer: Optimizer) -> Iterator[Tensor]:
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    return (p.grad for p in parameters if p.grad is not None)


def norm_ratio(rule: Any, mean_client_norm: float | None) -> float:
    """Return ``E / N``, or 0 where N is near 0 (``N ≤ 1e-6 E``, or ``E = 0``).

    ``rule.degenerate`` tells which.
    """
    client_norm = required_value(rule, "mean_client_norm", mean_client_norm)
    update = required_value(rule, "the norm of the gradient", update_norm(rule))
    rule.degenerate = update <= NEAR_ZERO * client_norm or client_norm == 0.0
    return 0.0 if rule.degenerate else client_norm / update


@torch.no_grad()
def move(
    optimizer: Optimizer,
    ratio: Callable[[dict[str, Any]], float] = lambda _: 1.0,
    memory: str = "momentum",
) -> None:
    """Apply ``d ← γ d + ratio β S; w ← w + η d``, but nothing at ratio 0.

    β is 1 in a rule without it; where γ is 0, as in a rule without it, no ``d`` is kept. The ratio
    is a group's; ``memory`` is the name of ``d`` in checkpoints.
    """
    # All groups are read before any moves: a missing value leaves the model as it was.
    factors = []
    for group in optimizer.param_groups:
        beta = required_value(optimizer, "beta", group.get("beta", 1.0))
        gamma = required_value(optimizer, "gamma", group.get("gamma", 0.0), below=1.0)
        lr = required_value(optimizer, "lr", group["lr"])
        factors.append((ratio(group), beta, gamma, lr))
    check_finite(optimizer)
    for group, (scale, beta, gamma, lr) in zip(optimizer.param_groups, factors, strict=True):
        for parameter in group["params"]:
            if parameter.grad is None or scale == 0:
                continue
            step = parameter.grad * -(scale * beta)
            if gamma > 0.0:
                state = optimizer.state[parameter]
                if memory in state:
                    step = state[memory].mul_(gamma).add_(step)
                else:
                    state[memory] = step
            parameter.add_(step, alpha=lr)
