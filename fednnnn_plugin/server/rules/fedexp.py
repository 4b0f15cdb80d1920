"""FedExP, a baseline: extrapolated FedAvg."""

from typing import Any

from torch.optim import Optimizer

from fednnnn_plugin.server.gradients import Params, move, required_value, update_norm
from fednnnn_plugin.server.rules import LR, positive, rule

EPSILON = positive(default=1e-3, argument="epsilon")


@rule(fedexp_epsilon=EPSILON, wants=("mean_client_square",), evaluated="midpoint")
class FedExP(Optimizer):
    r"""FedExP: FedAvg with a step that is longer the more the clients disagree.

    .. math::
        η_g = \max\left(1, \frac{\sum_k α_k \left\lVert Δ_k \right\rVert_2^2}{2 (N^2 + ε)}\right),
        \quad w_{t+1} = w_t + η η_g S

    with ``N = ‖S‖₂`` over all parameters. For weights ``α_k = 1/m`` this is the source's
    ``Σ_k ‖Δ_k‖² / (2 m (N² + ε))``. The authors' code uses ``m ε`` instead of ``ε``, and reduces it
    in each round together with the clients' learning rate; here it is as in their paper.

    The mean of ``w_t`` and ``w_{t+1}`` is tested, as in the source, because the iterates swing; so
    in round 1 ``w_0`` counts, where the authors' code takes ``w_1`` alone. The other argument and
    the errors are those of :class:`~fednnnn_plugin.PaperFedAvg`.

    Args:
        lr: η, scales the step; 1 in the source.
        epsilon: ε > 0, keeps the step small if S is near 0; in units of ``‖Δ‖²``. The default is
            the authors' for CIFAR-10 and CIFAR-100; theirs for EMNIST is 0.1.

    Source: Jhunjhunwala, Wang, Joshi, "FedExP: Speeding Up Federated Averaging via
    Extrapolation", ICLR 2023 (arXiv 2301.09604), algorithm 1.

    Example:
        >>> import torch
        >>> from fednnnn_plugin import FedExP
        >>> w = torch.nn.Parameter(torch.zeros(2))
        >>> server = FedExP([w], epsilon=1.0)
        >>> w.grad = -torch.tensor([0.0, 1.0])  # -S, N = 1
        >>> server.step(mean_client_square=8.0)  # 8 / (2 (1 + 1)) = 2
        >>> w.data
        tensor([0., 2.])
    """

    def __init__(self, params: Params, lr: float = 1.0, epsilon: float = 1e-3) -> None:
        defaults = {"lr": LR.checked("lr", lr), "epsilon": EPSILON.checked("epsilon", epsilon)}
        super().__init__(params, defaults)

    def step(self, closure: Any = None, *, mean_client_square: float | None = None) -> Any:
        """Make a step; ``mean_client_square`` is ``Σ α_k ‖w_k - w_t‖₂²``."""

        def ratio(group: dict[str, Any]) -> float:
            square = required_value(self, "mean_client_square", mean_client_square)
            EPSILON.checked("epsilon", group["epsilon"])
            norm = update_norm(self)
            return max(1.0, square / (2 * (norm * norm + group["epsilon"])))

        move(self, ratio)
