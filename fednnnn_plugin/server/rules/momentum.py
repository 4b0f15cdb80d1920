"""Momentum: server momentum on the plain average update."""

from typing import Any

from torch.optim import Optimizer

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.server.gradients import Params, move
from fednnnn_plugin.server.rules import LR, decay, rule

#: γ, and a grid of it that holds what the paper chose (table of its appendix): 0.6 to 0.9.
GAMMA = decay(grid=(0.5, 0.6, 0.7, 0.8, 0.9))


@rule(gamma=GAMMA, place=4)
class Momentum(Optimizer):
    r"""Server momentum without dampening (paper, eqs. 10 and 11).

    .. math:: d_{t+1} = γ d_t + S, \quad w_{t+1} = w_t + η d_{t+1}, \quad d_0 = 0

    With γ = 0 it is FedAvg's server step. The other arguments and the errors are those of
    :class:`~fednnnn_plugin.PaperFedAvg`.

    Args:
        gamma: γ in [0, 1), the momentum; required by :meth:`step`.
        momentum: another name of γ, which FedML's FedOpt uses.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1.0,
        gamma: float | None = None,
        momentum: float | None = None,
    ) -> None:
        if gamma is not None and momentum is not None and gamma != momentum:
            raise UserError(
                "gamma", f"{gamma!r}, momentum: {momentum!r}: two names of γ", "give one"
            )
        defaults = {
            "lr": LR.checked("lr", lr),
            "gamma": GAMMA.checked("gamma", momentum if gamma is None else gamma),
        }
        super().__init__(params, defaults)

    def step(self, closure: Any = None) -> Any:
        """Make a step."""
        move(self)
