"""FedAdagrad, a baseline: Adagrad on the server."""

from torch import Tensor

from fednnnn_plugin.server.gradients import Params
from fednnnn_plugin.server.rules import decay, rule
from fednnnn_plugin.server.rules.fedadam import KEYS, FedAdam


@rule(
    server_lr=KEYS["server_lr"],
    server_beta1=decay(default=0.0, argument="beta1"),
    server_tau=KEYS["server_tau"],
    evaluated="served",
)
class FedAdagrad(FedAdam):
    r"""FedAdagrad: Adagrad on the server, applied to the average update.

    .. math:: v_t = v_{t-1} + S^2

    and the rest as :class:`~fednnnn_plugin.server.rules.fedadam.FedAdam`, including arguments,
    errors and source, but without β₂, and with β₁ = 0 as in the source's experiments. v only rises:
    the steps shrink from round to round.
    """

    def __init__(self, params: Params, lr: float, beta1: float = 0.0, tau: float = 1e-3) -> None:
        defaults = {"lr": lr, "beta1": beta1, "tau": tau}  # by which OptRepo knows the arguments
        super().__init__(params, beta2=0.0, **defaults)

    def _move_second_moment(self, v: Tensor, square: Tensor, beta2: float) -> None:
        v.add_(square)
