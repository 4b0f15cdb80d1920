"""FedAvg, the paper's first baseline."""

from typing import Any

from torch.optim import Optimizer

from fednnnn_plugin.server.gradients import Params, move
from fednnnn_plugin.server.rules import LR, rule


@rule(place=1)
class PaperFedAvg(Optimizer):
    r"""FedAvg: a step by the average update (McMahan et al. 2017; paper, eq. 3).

    .. math:: w_{t+1} = w_t + η S

    Its name leaves ``FedAvg`` to FedML's own method.

    Args:
        params: the server's parameters; ``p.grad`` holds ``-S`` in the dtype of ``p``.
        lr: η of the server, scales the step; 1 is the paper's step. The paper's η is the clients'.

    Raises:
        UserError: a value out of range; at ``step``: a value that it needs is missing, or the
            gradient is not finite.
    """

    def __init__(self, params: Params, lr: float = 1.0) -> None:
        defaults = {"lr": LR.checked("lr", lr)}
        super().__init__(params, defaults)

    def step(self, closure: Any = None) -> Any:
        """Make a step; as in every rule, a ``closure`` is not called: no loss has this gradient."""
        move(self)
