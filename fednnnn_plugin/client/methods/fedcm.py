"""FedCM: momentum of the server in each client's step."""

from typing import ClassVar

from torch import Tensor

from fednnnn_plugin.client.method import (
    ClientMethod,
    GradientAt,
    LocalStep,
    LocalUpdate,
    Vectors,
)
from fednnnn_plugin.server.rules import decay


class FedCM(ClientMethod):
    r"""FedCM (Xu, Wang, Wang, Yao 2021, arXiv 2106.10874, algorithm 2).

    .. math::
        w ← w - η \left( (1 - β) ∇ℓ(w; b) + β m_t + λ w \right), \quad
        m_{t+1} = -\sum_{k ∈ A} α_k \frac{Δ_k}{η T_k}, \quad m_0 = 0

    over the accepted clients A, of :math:`T_k` steps each. The source has α for ``1 - β``. The
    server's step is any rule's: the source's global step size is that of FedAvg's server at 1 where
    all clients make as many steps. The decay λ counts as part of the clients' directions.
    """

    keys: ClassVar = {"fedcm_beta": decay(default=0.9, grid=(0.3, 0.5, 0.7, 0.9))}
    sends = ("m",)
    returns = ("direction",)
    needs_plain_sgd = True

    def __init__(self, fedcm_beta: float) -> None:
        self.beta = fedcm_beta

    def gradient(self, weights: Tensor, gradient_at: GradientAt, step: LocalStep) -> Tensor:
        """Return the mixture of a client's gradient and the mean direction of the last round."""
        return gradient_at(weights) * (1 - self.beta) + self.beta * step.sent["m"]

    def finish_client(self, local: LocalUpdate) -> tuple[Vectors, Vectors]:
        """Return the mean of a client's steps."""
        return {}, {"direction": -local.update / (local.steps * local.learning_rate)}

    def finish_round(self, sent: Vectors, returned: Vectors, share: float) -> Vectors:
        """Return the next ``m``."""
        return {"m": returned["direction"]}
