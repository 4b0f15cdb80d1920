"""FedYogi, a baseline: Yogi on the server."""

from torch import Tensor
from torch.optim import Optimizer

from fednnnn_plugin.server.gradients import Closure, Loss, Params
from fednnnn_plugin.server.rules.fedadam import adaptive, adaptive_step, check_groups


@adaptive
class FedYogi(Optimizer):
    r"""FedYogi: Yogi on the server, applied to the average update.

    .. math::
        v_t = v_{t-1} - (1 - β_2) S^2 \operatorname{sign}(v_{t-1} - S^2)

    and the rest as :class:`~fednnnn_plugin.server.rules.fedadam.FedAdam`, including arguments,
    errors and source. v falls no faster than it rises, so that one large update does not fade
    at once.
    """

    def __init__(
        self, params: Params, lr: float, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3
    ) -> None:
        defaults = {"lr": lr, "beta1": beta1, "beta2": beta2, "tau": tau}
        super().__init__(params, defaults)
        check_groups(self)

    def step(self, closure: Closure | None = None) -> Loss:
        """Make a step."""
        return adaptive_step(self, closure, _yogi)


def _yogi(v: Tensor, square: Tensor, beta2: float) -> None:
    v.sub_((v - square).sign_().mul_(square).mul_(1 - beta2))
