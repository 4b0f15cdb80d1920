"""Comparators that are not the paper's: rules that adapt the server's step.

Torch optimizers on pseudo-gradients like those of :mod:`.optimizers`: ``p.grad = -S``, and each a
*direct* subclass of ``torch.optim.Optimizer``. What each evaluates is said in
:meth:`~fednnnn_plugin.server.server.ServerRule.evaluation`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import overload

import torch
from torch import Tensor
from torch.optim import Optimizer

from fednnnn_plugin.errors import RunError
from fednnnn_plugin.server.arguments import (
    Params,
    checked_decay,
    checked_positive,
    loss_of,
    measured,
    update_norm,
)


class FedExP(Optimizer):
    r"""FedAvg, extrapolated by as much as the clients disagree.

    .. math::
        η_g = \max\left(1, \frac{\sum_k α_k \lVert Δ_k \rVert_2^2}{2 (N^2 + ε)}\right), \quad
        w_{t+1} = w_t + η η_g S

    with ``N = ‖S‖₂`` over all parameters. The source's ``Σ_k ‖Δ_k‖² / (2 m (N² + ε))`` is this
    for its weights ``α_k = 1/m``. The authors' code has ``m ε`` in the place of ``ε``, and shrinks
    it from round to round along with the clients' learning rate; here it is as in the paper.

    Args:
        params: the server's parameters; ``p.grad`` holds ``-S`` in the dtype of ``p``.
        lr: η, scales the move; 1 in the source.
        epsilon: ε > 0, keeps the step small where S vanishes; in units of ``‖Δ‖²``. The default is
            the authors' for CIFAR-10 and CIFAR-100; theirs for EMNIST is 0.1.

    Raises:
        UserError: a value out of range; at ``step``: the mean square is missing.

    Source: Jhunjhunwala, Wang, Joshi, "FedExP: Speeding Up Federated Averaging via
    Extrapolation", ICLR 2023 (arXiv 2301.09604), algorithm 1.

    Example:
        >>> import torch
        >>> w = torch.nn.Parameter(torch.zeros(2))
        >>> server = FedExP([w], epsilon=1.0)
        >>> w.grad = -torch.tensor([0.0, 1.0])  # -S, N = 1
        >>> server.step(mean_client_square=8.0)  # 8 / (2 (1 + 1)) = 2
        >>> w.data
        tensor([0., 2.])
    """

    degenerate = False

    def __init__(self, params: Params, lr: float = 1.0, epsilon: float = 1e-3) -> None:
        defaults = {
            "lr": checked_positive("lr", lr),
            "epsilon": checked_positive("epsilon", epsilon),
        }
        super().__init__(params, defaults)

    @overload
    def step(self, closure: None = None, *, mean_client_square: float | None = None) -> None: ...
    @overload
    def step(
        self, closure: Callable[[], float], *, mean_client_square: float | None = None
    ) -> float: ...
    @torch.no_grad()
    def step(
        self,
        closure: Callable[[], float] | None = None,
        *,
        mean_client_square: float | None = None,
    ) -> float | None:
        """Move the model; ``mean_client_square`` is ``Σ α_k ‖w_k - w_t‖₂²``."""
        loss = loss_of(closure)
        square = measured(self, "mean_client_square", "Σ α_k ‖Δ_k‖²", mean_client_square)
        norm = update_norm(self)
        for group in self.param_groups:
            extrapolation = max(1.0, square / (2 * (norm * norm + group["epsilon"])))
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.add_(parameter.grad * -(group["lr"] * extrapolation))
        return loss


class FedAdam(Optimizer):
    r"""Adam on the server, on the average update.

    .. math::
        m_t = β_1 m_{t-1} + (1 - β_1) S, \quad v_t = β_2 v_{t-1} + (1 - β_2) S^2, \quad
        w_{t+1} = w_t + η \frac{m_t}{\sqrt{v_t} + τ}

    element by element, with ``m_{-1} = 0`` and ``v_{-1} = τ²``, the least that the source allows;
    no correction of the bias.

    Args:
        params: the server's parameters; ``p.grad`` holds ``-S`` in the dtype of ``p``, which m and
            v have too.
        lr: η > 0.
        beta1: β₁ in [0, 1); the default is the source's.
        beta2: β₂ in [0, 1); the default is the source's.
        tau: τ > 0, the degree of adaptivity, in units of S; the default is the source's.

    Raises:
        UserError: a value out of range.
        RunError: at ``step``: v overflowed; the model may have moved in part.

    Source: Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, "Adaptive Federated
    Optimization", ICLR 2021 (arXiv 2003.00295), algorithm 2.
    """

    degenerate = False

    def __init__(
        self,
        params: Params,
        lr: float,
        beta1: float = 0.9,
        beta2: float = 0.99,
        tau: float = 1e-3,
    ) -> None:
        defaults = _checked(lr, beta1, beta2, tau)
        super().__init__(params, defaults)

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Move the model."""
        return _adaptive_step(self, closure, _adam)


class FedYogi(Optimizer):
    r"""Yogi on the server, on the average update.

    .. math::
        v_t = v_{t-1} - (1 - β_2) S^2 \operatorname{sign}(v_{t-1} - S^2)

    and the rest as :class:`FedAdam`, arguments and source included: v falls by no more than it
    would rise, so that one large update does not fade at once.
    """

    degenerate = False

    def __init__(
        self,
        params: Params,
        lr: float,
        beta1: float = 0.9,
        beta2: float = 0.99,
        tau: float = 1e-3,
    ) -> None:
        defaults = _checked(lr, beta1, beta2, tau)
        super().__init__(params, defaults)

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Move the model."""
        return _adaptive_step(self, closure, _yogi)


SecondMoment = Callable[[Tensor, Tensor, float], None]


def _adam(v: Tensor, square: Tensor, beta2: float) -> None:
    v.mul_(beta2).add_(square * (1 - beta2))


def _yogi(v: Tensor, square: Tensor, beta2: float) -> None:
    v.sub_((v - square).sign_().mul_(square).mul_(1 - beta2))


@torch.no_grad()
def _adaptive_step(
    optimizer: FedAdam | FedYogi,
    closure: Callable[[], float] | None,
    second_moment: SecondMoment,
) -> float | None:
    loss = loss_of(closure)
    for group in optimizer.param_groups:
        beta1, tau = group["beta1"], group["tau"]
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            update = -parameter.grad
            state = optimizer.state[parameter]
            if not state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
                state["second_moment"] = torch.full_like(parameter, tau**2)
            m, v = state["momentum_buffer"], state["second_moment"]
            # Plain operations, each rounded by IEEE 754: the bits depend on no vector width or
            # number of threads. torch promises nothing of the kind for its fused ones.
            m.mul_(beta1).add_(update * (1 - beta1))
            second_moment(v, update.square(), group["beta2"])
            if not v.isfinite().all():  # m / ∞ = 0 would stop those elements for good, unseen
                raise RunError(
                    f"{type(optimizer).__name__}: v is no longer finite: the square of an average "
                    f"update is beyond {v.dtype}"
                )
            parameter.add_(m.div(v.sqrt().add_(tau)).mul_(group["lr"]))
    return loss


def _checked(lr: float, beta1: float, beta2: float, tau: float) -> dict[str, float]:
    return {
        "lr": checked_positive("lr", lr),
        "beta1": checked_decay("beta1", beta1),
        "beta2": checked_decay("beta2", beta2),
        "tau": checked_positive("tau", tau),
    }
