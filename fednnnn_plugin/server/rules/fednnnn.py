"""FedNNNN: the paper's method."""

from typing import Any

from torch.optim import Optimizer

from fednnnn_plugin.server.gradients import Params, move, norm_ratio
from fednnnn_plugin.server.rules import LR, rule
from fednnnn_plugin.server.rules.momentum import GAMMA
from fednnnn_plugin.server.rules.norm_norm import BETA


@rule(beta=BETA, gamma=GAMMA, wants=("mean_client_norm",), place=5)
class FedNNNN(Optimizer):
    r"""Norm-normalised aggregation with server momentum (paper, eqs. 12 and 13).

    .. math::
        d_{t+1} = γ d_t + β \frac{E}{N} S, \quad w_{t+1} = w_t + η d_{t+1}, \quad d_0 = 0

    with ``N = ‖S‖₂`` over all parameters. If N is near 0 (``N ≤ 1e-6 E``, or ``E = 0``), neither
    the model nor ``d`` changes, and the attribute ``degenerate`` is true. The other arguments and
    the errors are those of :class:`~fednnnn_plugin.PaperFedAvg`.

    Args:
        beta: β > 0, scales the normalised update; required by :meth:`step`.
        gamma: γ in [0, 1), the momentum; required by :meth:`step`.

    Example:
        >>> import torch
        >>> from fednnnn_plugin import FedNNNN
        >>> w = torch.nn.Parameter(torch.zeros(2))
        >>> server = FedNNNN([w], beta=0.7, gamma=0.8)
        >>> w.grad = -torch.tensor([1.5, 2.0])  # -S, N = 2.5
        >>> server.step(mean_client_norm=3.5)
        >>> w.data.norm()  # βE
        tensor(2.4500)
    """

    degenerate = False

    def __init__(
        self,
        params: Params,
        lr: float = 1.0,
        beta: float | None = None,
        gamma: float | None = None,
    ) -> None:
        defaults = {
            "lr": LR.checked("lr", lr),
            "beta": BETA.checked("beta", beta),
            "gamma": GAMMA.checked("gamma", gamma),
        }
        super().__init__(params, defaults)

    def step(self, closure: Any = None, *, mean_client_norm: float | None = None) -> Any:
        """Make a step; ``mean_client_norm`` is ``E = Σ α_k ‖w_k - w_t‖₂``."""
        move(self, lambda _: norm_ratio(self, mean_client_norm))
