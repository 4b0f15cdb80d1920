"""FedProx, the paper's second baseline."""

from torch.optim import Optimizer

from fednnnn_plugin.server.gradients import Closure, Loss, Params, move
from fednnnn_plugin.server.rules import LR, rule


@rule(client_method="fedprox", place=2)
class PaperFedProx(Optimizer):
    r"""FedProx (Li et al. 2020; paper, eq. 7): at the server a step by the average update.

    .. math:: w_{t+1} = w_t + η S

    Arguments and errors are those of :class:`~fednnnn_plugin.PaperFedAvg`. The proximal term is the
    clients', in ``client/methods/fedprox.py``.
    """

    def __init__(self, params: Params, lr: float = 1.0) -> None:
        defaults = {"lr": LR.checked("lr", lr)}
        super().__init__(params, defaults)

    def step(self, closure: Closure | None = None) -> Loss:
        """Make a step."""
        return move(self, closure)
