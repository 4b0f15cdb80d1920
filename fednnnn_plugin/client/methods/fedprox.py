"""FedProx, the paper's second baseline."""

from typing import ClassVar

from fednnnn_plugin.client.method import ClientMethod
from fednnnn_plugin.server.rules import non_negative


class FedProx(ClientMethod):
    """Clients minimise ``loss + μ/2 ‖w - w_t‖²`` (Li et al. 2020; paper, eq. 7)."""

    keys: ClassVar = {"prox_mu": non_negative(grid=(0.005, 0.01, 0.015, 0.02))}

    def __init__(self, prox_mu: float) -> None:
        self.prox_mu = prox_mu
