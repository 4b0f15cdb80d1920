"""The server rules as torch optimizers on pseudo-gradients.

The server sets ``p.grad = -S`` on its model, ``S = Σ α_k (w_k - w_t)`` being the average client
update, and steps. Each rule is a *direct* subclass of ``torch.optim.Optimizer``: FedML's registry
lists no other. The mathematics is :func:`_server_step`, written once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.server.arguments import (
    Params,
    checked_decay,
    checked_positive,
    loss_of,
    measured,
    update_norm,
)

#: ``N ≤ NEAR_ZERO · E`` counts as N = 0: below it float32 leaves only rounding noise in S.
NEAR_ZERO = 1e-6


class FedNNNN(Optimizer):
    r"""Norm-normalised aggregation with server momentum (paper, eqs. 13 and 14).

    .. math::
        d_{t+1} = γ d_t + β \frac{E}{N} S, \quad w_{t+1} = w_t + η d_{t+1}, \quad d_0 = 0

    with ``N = ‖S‖₂`` over all parameters. Where N is near 0 (``N ≤ 1e-6 E``, or ``E = 0``) the
    model stays as it is and so does ``d``; ``degenerate`` tells.

    Args:
        params: the server's parameters; ``p.grad`` holds ``-S`` in the dtype of ``p``.
        lr: η, scales the move; 1 in the paper.
        beta: β > 0, scales the normalised update.
        gamma: γ in [0, 1), the momentum.
        momentum: another name of γ, the one that FedML's FedOpt passes.

    Raises:
        UserError: a value out of range; at ``step``: β, γ or E is missing.

    Example:
        >>> import torch
        >>> w = torch.nn.Parameter(torch.zeros(2))
        >>> server = FedNNNN([w], beta=0.7, gamma=0.8)
        >>> w.grad = -torch.tensor([1.5, 2.0])  # -S, N = 2.5
        >>> server.step(mean_client_norm=3.5)
        >>> w.data.norm()  # βE
        tensor(2.4500)
    """

    degenerate = False

    def __init__(
        self,
        params: Params,
        lr: float = 1.0,
        beta: float | None = None,
        gamma: float | None = None,
        momentum: float | None = None,
    ) -> None:
        defaults = {
            "lr": checked_positive("lr", lr),
            "beta": _checked_beta(beta),
            "gamma": _checked_gamma(gamma, momentum),
        }
        super().__init__(params, defaults)

    @overload
    def step(self, closure: None = None, *, mean_client_norm: float | None = None) -> None: ...
    @overload
    def step(
        self, closure: Callable[[], float], *, mean_client_norm: float | None = None
    ) -> float: ...
    def step(
        self,
        closure: Callable[[], float] | None = None,
        *,
        mean_client_norm: float | None = None,
    ) -> float | None:
        """Move the model; ``mean_client_norm`` is ``E = Σ α_k ‖w_k - w_t‖₂``."""
        return _server_step(self, closure, mean_client_norm)


class NormNorm(Optimizer):
    r"""Norm-normalised aggregation without momentum (paper, eq. 8).

    .. math:: w_{t+1} = w_t + η β \frac{E}{N} S, \quad \lVert w_{t+1} - w_t \rVert_2 = η β E

    Where N is near 0 the model stays as it is; ``degenerate`` tells.

    Args:
        params: the server's parameters; ``p.grad`` holds ``-S`` in the dtype of ``p``.
        lr: η, scales the move; 1 in the paper.
        beta: β > 0, scales the normalised update.

    Raises:
        UserError: a value out of range; at ``step``: β or E is missing.
    """

    degenerate = False

    def __init__(self, params: Params, lr: float = 1.0, beta: float | None = None) -> None:
        defaults = {"lr": checked_positive("lr", lr), "beta": _checked_beta(beta)}
        super().__init__(params, defaults)

    @overload
    def step(self, closure: None = None, *, mean_client_norm: float | None = None) -> None: ...
    @overload
    def step(
        self, closure: Callable[[], float], *, mean_client_norm: float | None = None
    ) -> float: ...
    def step(
        self,
        closure: Callable[[], float] | None = None,
        *,
        mean_client_norm: float | None = None,
    ) -> float | None:
        """Move the model; ``mean_client_norm`` is ``E = Σ α_k ‖w_k - w_t‖₂``."""
        return _server_step(self, closure, mean_client_norm)


class Momentum(Optimizer):
    r"""Server momentum without dampening (paper, eqs. 11 and 12).

    .. math:: d_{t+1} = γ d_t + S, \quad w_{t+1} = w_t + η d_{t+1}, \quad d_0 = 0

    With γ = 0 it is FedAvg's server step.

    Args:
        params: the server's parameters; ``p.grad`` holds ``-S`` in the dtype of ``p``.
        lr: η, scales the move; 1 in the paper.
        gamma: γ in [0, 1), the momentum.
        momentum: another name of γ, the one that FedML's FedOpt passes.

    Raises:
        UserError: a value out of range; at ``step``: γ is missing.
    """

    degenerate = False

    def __init__(
        self,
        params: Params,
        lr: float = 1.0,
        gamma: float | None = None,
        momentum: float | None = None,
    ) -> None:
        defaults = {"lr": checked_positive("lr", lr), "gamma": _checked_gamma(gamma, momentum)}
        super().__init__(params, defaults)

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Move the model."""
        return _server_step(self, closure, None)


ServerOptimizer = FedNNNN | NormNorm | Momentum


def _server_step(
    optimizer: ServerOptimizer,
    closure: Callable[[], float] | None,
    mean_client_norm: float | None,
) -> float | None:
    """Apply ``d ← γ d + c S; w ← w + η d``.

    ``c = β E / N`` for the rules that normalise and 1 for the others; ``γ = 0``, without a
    buffer, for the rules that have no momentum.
    """
    loss = loss_of(closure)
    ratio = 1.0
    if "beta" in optimizer.defaults:
        ratio = _norm_ratio(optimizer, mean_client_norm)
    # All groups are read before any moves: a missing value leaves the model as it was.
    factors = [
        (
            ratio * (_required(optimizer, group, "beta") if "beta" in group else 1.0),
            _required(optimizer, group, "gamma") if "gamma" in group else 0.0,
        )
        for group in optimizer.param_groups
    ]
    optimizer.degenerate = ratio == 0.0
    if optimizer.degenerate:
        return loss
    for group, (scale, gamma) in zip(optimizer.param_groups, factors, strict=True):
        for parameter in group["params"]:
            if parameter.grad is not None:
                _move(optimizer, parameter, scale, gamma, group["lr"])
    return loss


@torch.no_grad()
def _move(optimizer: Optimizer, parameter: Tensor, scale: float, gamma: float, lr: float) -> None:
    assert parameter.grad is not None
    move = parameter.grad * -scale
    if gamma > 0.0:
        state = optimizer.state[parameter]
        if "momentum_buffer" in state:
            move = state["momentum_buffer"].mul_(gamma).add_(move)
        else:
            state["momentum_buffer"] = move
    parameter.add_(move, alpha=lr)


def _norm_ratio(optimizer: Optimizer, mean_client_norm: float | None) -> float:
    """Return ``E / N``, or 0 where N is near 0."""
    client_norm = measured(optimizer, "mean_client_norm", "E", mean_client_norm)
    mean_update_norm = update_norm(optimizer)
    if mean_update_norm <= NEAR_ZERO * client_norm or client_norm == 0.0:
        return 0.0
    return client_norm / mean_update_norm


def _required(optimizer: Optimizer, group: dict[str, Any], name: str) -> float:
    value = group[name]
    if value is None:
        raise UserError(
            f"{type(optimizer).__name__}.step: {name} is missing: set train_args.{name}"
        )
    return float(value)


def _checked_beta(beta: float | None) -> float | None:
    return None if beta is None else checked_positive("beta", beta)


def _checked_gamma(gamma: float | None, momentum: float | None) -> float | None:
    if gamma is not None and momentum is not None and gamma != momentum:
        raise UserError(f"gamma: {gamma!r}, momentum: {momentum!r}: two names of γ; give one")
    value = momentum if gamma is None else gamma
    return None if value is None else checked_decay("gamma", value)
