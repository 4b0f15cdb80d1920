"""FedDyn: dynamic regularisation, the clients' part."""

from typing import ClassVar

from torch import Tensor

from fednnnn_plugin.client.method import ClientMethod, LocalUpdate, Vectors
from fednnnn_plugin.server.rules.feddyn import ALPHA


class FedDyn(ClientMethod):
    r"""The clients of FedDyn (Acar et al. 2021, arXiv 2111.04263, algorithm 1).

    .. math::
        w ← w - η \left( ∇ℓ(w; b) + λ w - g_k + α (w - w_t) \right), \quad g_k^+ = g_k - α Δ_k

    :math:`g_k`, initially 0, estimates the gradient of the client's loss where it ended. The
    server's part is the rule :class:`~fednnnn_plugin.server.rules.feddyn.FedDyn`, which names this
    method; under another rule the clients' part acts alone. A client whose update is rejected keeps
    the :math:`g_k` that it had.
    """

    keys: ClassVar = {"feddyn_alpha": ALPHA}
    keeps = ("g_k",)

    def __init__(self, feddyn_alpha: float) -> None:
        self.prox_mu = feddyn_alpha

    def correction(self, sent: Vectors, kept: Vectors) -> Tensor:
        """Return ``-g_k``."""
        return -kept["g_k"]

    def finish_client(self, local: LocalUpdate) -> tuple[Vectors, Vectors]:
        """Return ``g_k^+``."""
        return {"g_k": local.kept["g_k"] - self.prox_mu * local.update}, {}
