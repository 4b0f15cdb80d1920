"""FedProx, the paper's second baseline."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from fednnnn_plugin.server.gradients import Closure, Params, loss_of, move
from fednnnn_plugin.server.rules.registry import non_negative, positive, rule


@rule(prox_mu=non_negative(client=True, grid=(0.005, 0.01, 0.015, 0.02)), place=2)
class PaperFedProx(Optimizer):
    r"""FedAvg's server step (Li et al. 2020; paper, eq. 9).

    .. math:: w_{t+1} = w_t + η S

    What is FedProx's own happens at the clients, which minimise ``loss + μ/2 ‖w - w_t‖²``.

    Args:
        params: the server's parameters; ``p.grad`` holds ``-S`` in the dtype of ``p``.
        lr: η, scales the move; 1 in the paper.

    Raises:
        UserError: a value out of range.
    """

    def __init__(self, params: Params, lr: float = 1.0) -> None:
        super().__init__(params, {"lr": positive().checked("lr", lr)})

    def step(self, closure: Closure | None = None) -> Any:
        """Move the model."""
        loss = loss_of(closure)
        move(self, [(1.0, 0.0)] * len(self.param_groups))
        return loss
