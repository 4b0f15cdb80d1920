"""FedAdagrad, a baseline: Adagrad on the server."""

from torch import Tensor
from torch.optim import Optimizer

from fednnnn_plugin.server.gradients import Closure, Loss, Params
from fednnnn_plugin.server.rules import decay, rule
from fednnnn_plugin.server.rules.fedadam import KEYS, adaptive_step, check_groups


@rule(
    server_lr=KEYS["server_lr"],
    server_beta1=decay(default=0.0, argument="beta1"),
    server_tau=KEYS["server_tau"],
    evaluated="served",
)
class FedAdagrad(Optimizer):
    r"""FedAdagrad: Adagrad on the server, applied to the average update.

    .. math:: v_t = v_{t-1} + S^2

    and the rest as :class:`~fednnnn_plugin.server.rules.fedadam.FedAdam`, including arguments,
    errors and source, but without β₂, and with β₁ = 0 as in the source's experiments. v only rises:
    the steps shrink from round to round.
    """

    def __init__(self, params: Params, lr: float, beta1: float = 0.0, tau: float = 1e-3) -> None:
        defaults = {"lr": lr, "beta1": beta1, "beta2": 0.0, "tau": tau}
        super().__init__(params, defaults)
        check_groups(self)

    def step(self, closure: Closure | None = None) -> Loss:
        """Make a step."""
        return adaptive_step(self, closure, _adagrad)


def _adagrad(v: Tensor, square: Tensor, _: float) -> None:
    v.add_(square)
