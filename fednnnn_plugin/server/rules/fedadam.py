"""FedAdam, a baseline: Adam on the server."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fednnnn_plugin.errors import RunError, UserError
from fednnnn_plugin.server.gradients import Params, check_finite, required_value
from fednnnn_plugin.server.rules import decay, positive, rule

# The defaults are the source's, which has none for η and searches it by half powers of ten.
KEYS = {
    "server_lr": positive(argument="lr", grid=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)),
    "server_beta1": decay(default=0.9, argument="beta1"),
    "server_beta2": decay(default=0.99, argument="beta2"),
    "server_tau": positive(default=1e-3, argument="tau"),
}
adaptive = rule(wants=(), evaluated="served", place=None, client_method=None, **KEYS)


@adaptive
class FedAdam(Optimizer):
    r"""FedAdam: Adam on the server, applied to the average update.

    .. math::
        m_t = β_1 m_{t-1} + (1 - β_1) S, \quad v_t = β_2 v_{t-1} + (1 - β_2) S^2, \quad
        w_{t+1} = w_t + η \frac{m_t}{\sqrt{v_t} + τ}

    element by element, with ``m_{-1} = 0`` and ``v_{-1} = τ²``, the smallest value that the source
    allows, and without bias correction. The source has one server model, ``w_{t+1}``, which is
    tested.

    Args:
        params: the server's parameters; ``p.grad`` holds ``-S`` in the dtype of ``p``, which is
            also that of m and v.
        lr: η > 0.
        beta1: β₁ in [0, 1).
        beta2: β₂ in [0, 1).
        tau: τ > 0, the degree of adaptivity, in units of S.

    Raises:
        UserError: a value out of range; τ² is 0 or infinite in the parameters' dtype; at ``step``:
            the gradient is not finite.
        RunError: at ``step``: v overflowed; a part of the model may have changed.

    Source: Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, "Adaptive Federated
    Optimization", ICLR 2021 (arXiv 2003.00295), algorithm 2.
    """

    def __init__(
        self, params: Params, lr: float, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3
    ) -> None:
        defaults = {"lr": lr, "beta1": beta1, "beta2": beta2, "tau": tau}
        super().__init__(params, defaults)
        self._check_groups()

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Make a step."""
        self._check_groups()
        for group in self.param_groups:  # all are read before any moves
            required_value(self, "lr", group["lr"])
        check_finite(self)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, -parameter.grad, group)

    def _move(self, parameter: Tensor, update: Tensor, group: dict[str, Any]) -> None:
        """Make a step of one parameter by its part of S."""
        state, beta1, tau = self.state[parameter], group["beta1"], group["tau"]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
            state["second_moment"] = torch.full_like(parameter, tau**2)
        m, v = state["momentum"], state["second_moment"]
        # Plain operations, each rounded by IEEE 754: the bits depend on no vector width or
        # number of threads. torch promises nothing of the kind for its fused ones.
        m.mul_(beta1).add_(update * (1 - beta1))
        self._move_second_moment(v, update.square(), group["beta2"])
        if not v.isfinite().all():  # m / ∞ = 0 would stop those elements for good, unseen
            raise RunError(
                f"{type(self).__name__}: v is no longer finite: the square of an average "
                f"update is beyond {v.dtype}"
            )
        parameter.add_(m.div(v.sqrt().add_(tau)).mul_(group["lr"]))

    def _move_second_moment(self, v: Tensor, square: Tensor, beta2: float) -> None:
        """Move v in place, given S² and β₂."""
        v.mul_(beta2).add_(square * (1 - beta2))

    def _check_groups(self) -> None:
        """Refuse a value out of range; a τ whose square, the first v, is 0 or infinite."""
        for group in self.param_groups:
            for name in ("lr", "beta1", "beta2", "tau"):
                KEYS[f"server_{name}"].checked(name, group[name])
            for dtype in {parameter.dtype for parameter in group["params"]}:
                form = torch.finfo(dtype)
                low, high = math.sqrt(form.smallest_normal * form.eps), math.sqrt(form.max)
                if not low <= group["tau"] <= high:
                    raise UserError(
                        type(self).__name__,
                        f"tau: {group['tau']!r}",
                        f"must be from {low:.2g} to {high:.2g}: its square is the first v, in "
                        f"{dtype}",
                    )
