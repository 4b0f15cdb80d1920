"""Momentum: server momentum on the plain average update."""

from torch.optim import Optimizer

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.server.gradients import Closure, Loss, Params, move
from fednnnn_plugin.server.rules import LR, decay, rule

#: γ, and a grid of it that holds what the paper chose (table of its appendix): 0.6 to 0.9.
GAMMA = decay(grid=(0.5, 0.6, 0.7, 0.8, 0.9))


def one_gamma(gamma: float | None, momentum: float | None) -> float | None:
    """Return γ, which may be given by either name, in its range."""
    if gamma is not None and momentum is not None and gamma != momentum:
        raise UserError("gamma", f"{gamma!r}, momentum: {momentum!r}: two names of γ", "give one")
    return GAMMA.checked("gamma", momentum if gamma is None else gamma)


@rule(gamma=GAMMA, place=4)
class Momentum(Optimizer):
    r"""Server momentum without dampening (paper, eqs. 10 and 11).

    .. math:: d_{t+1} = γ d_t + S, \quad w_{t+1} = w_t + η d_{t+1}, \quad d_0 = 0

    With γ = 0 it is FedAvg's server step.

    Args:
        params: the server's parameters; ``p.grad`` holds ``-S`` in the dtype of ``p``.
        lr: η of the server, scales the step; 1 is the paper's step. The paper's η is the clients'.
        gamma: γ in [0, 1), the momentum; required by :meth:`step`.
        momentum: another name of γ, which FedML's FedOpt uses.

    Raises:
        UserError: a value out of range; at ``step``: γ is missing, or the
            gradient is not finite.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1.0,
        gamma: float | None = None,
        momentum: float | None = None,
    ) -> None:
        defaults = {"lr": LR.checked("lr", lr), "gamma": one_gamma(gamma, momentum)}
        super().__init__(params, defaults)

    def step(self, closure: Closure | None = None) -> Loss:
        """Make a step."""
        return move(self, closure)
