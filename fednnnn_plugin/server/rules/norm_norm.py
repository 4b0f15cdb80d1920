"""Norm-Norm: FedNNNN without momentum."""

from typing import Any

from torch.optim import Optimizer

from fednnnn_plugin.server.gradients import Params, move, norm_ratio
from fednnnn_plugin.server.rules import LR, positive, rule

#: β, and a grid of it that holds what the paper chose (table of its appendix): 0.6 to 1.1.
BETA = positive(grid=(0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2))


@rule(beta=BETA, wants=("mean_client_norm",), place=3)
class NormNorm(Optimizer):
    r"""Norm-normalised aggregation without momentum (paper, eq. 8).

    .. math::
        w_{t+1} = w_t + η β \frac{E}{N} S, \quad \left\lVert w_{t+1} - w_t \right\rVert_2 = η β E

    If N is near 0 (``N ≤ 1e-6 E``, or ``E = 0``), the model does not change, and the attribute
    ``degenerate`` is true. The other arguments and the errors are those of
    :class:`~fednnnn_plugin.PaperFedAvg`.

    Args:
        beta: β > 0, scales the normalised update; required by :meth:`step`.
    """

    degenerate = False

    def __init__(self, params: Params, lr: float = 1.0, beta: float | None = None) -> None:
        defaults = {"lr": LR.checked("lr", lr), "beta": BETA.checked("beta", beta)}
        super().__init__(params, defaults)

    def step(self, closure: Any = None, *, mean_client_norm: float | None = None) -> Any:
        """Make a step; ``mean_client_norm`` is ``E = Σ α_k ‖w_k - w_t‖₂``."""
        move(self, lambda _: norm_ratio(self, mean_client_norm))
