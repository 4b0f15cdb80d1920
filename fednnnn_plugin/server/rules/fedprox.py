"""FedProx, the paper's second baseline."""

from torch.optim import Optimizer

from fednnnn_plugin.server.gradients import Closure, Loss, Params, loss_of, move
from fednnnn_plugin.server.rules import LR, rule


@rule(client_method="fedprox", place=2)
class PaperFedProx(Optimizer):
    r"""FedAvg's server step (Li et al. 2020; paper, eq. 7), arguments and errors included.

    .. math:: w_{t+1} = w_t + η S

    What is FedProx's own happens at the clients: see ``client/methods/fedprox.py``.
    """

    def __init__(self, params: Params, lr: float = 1.0) -> None:
        super().__init__(params, {"lr": LR.checked("lr", lr)})

    def step(self, closure: Closure | None = None) -> Loss:
        """Move the model."""
        loss = loss_of(closure)
        move(self)
        return loss
