"""FedAvgM, a baseline: server momentum as its source and as Adaptive Federated Optimization."""

from typing import Any

from torch.optim import Optimizer

from fednnnn_plugin.server.gradients import Params, move
from fednnnn_plugin.server.rules import decay, positive, rule

LR = positive(default=1.0, argument="lr", grid=(0.1, 0.3, 1.0, 3.0))
MOMENTUM = decay(default=0.9, argument="momentum", grid=(0.5, 0.7, 0.9, 0.97))
DAMPENING = decay(default=0.0, argument="dampening")


@rule(server_lr=LR, server_momentum=MOMENTUM, server_dampening=DAMPENING, evaluated="served")
class FedAvgM(Optimizer):
    r"""SGD with momentum on the server, applied to the average update.

    .. math:: v_{t+1} = γ v_t + (1 - δ) S, \quad w_{t+1} = w_t + η v_{t+1}, \quad v_0 = 0

    The source's equations have no dampening δ, and η = 1; its experiments take Nesterov's step,
    which is not here. With δ = γ, v is m of algorithm 2 of Reddi et al. (2021), of which FedAdam is
    the adaptive form. Unlike PyTorch's SGD the first step is dampened too.
    :class:`~fednnnn_plugin.Momentum`, the paper's, is the same move with η = 1 and δ = 0, but tests
    the plain average ``w_t + S``; here the model that is served, ``w_{t+1}``, is tested. The other
    arguments and the errors are those of :class:`~fednnnn_plugin.PaperFedAvg`.

    Args:
        lr: η > 0.
        momentum: γ in [0, 1).
        dampening: δ in [0, 1).

    Source: Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated
    Visual Classification", 2019 (arXiv 1909.06335), section 4.2.
    """

    def __init__(
        self, params: Params, lr: float = 1.0, momentum: float = 0.9, dampening: float = 0.0
    ) -> None:
        defaults = {
            "lr": LR.checked("lr", lr),
            "gamma": MOMENTUM.checked("momentum", momentum),
            "beta": 1 - (DAMPENING.checked("dampening", dampening) or 0.0),
        }
        super().__init__(params, defaults)

    def step(self, closure: Any = None) -> Any:
        """Make a step."""
        move(self, memory="velocity")
