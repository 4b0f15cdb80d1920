"""FedDyn, a baseline: dynamic regularisation, the server's part."""

from typing import Any

import torch
from torch.optim import Optimizer

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.server.gradients import Params, check_finite
from fednnnn_plugin.server.rules import positive, rule

#: α of the server and of its clients.
ALPHA = positive(grid=(0.003, 0.01, 0.03, 0.1, 0.3, 1.0))


@rule(
    feddyn_alpha=ALPHA,
    wants=("clients", "population"),
    evaluated="served",
    client_method="feddyn",
)
class FedDyn(Optimizer):
    r"""The server of FedDyn.

    .. math::
        h_{t+1} = h_t - α \frac{\lvert A \rvert}{K} S, \quad
        w_{t+1} = w_t + S - \frac{1}{α} h_{t+1}, \quad h_0 = 0

    for the accepted clients A of K. With ``client_weighting: uniform`` S is their mean, as in the
    source. ``w_{t+1}`` is tested, with which its algorithm ends; the authors' code tests
    ``w_t + S``, and has another α for each client where they differ in size. The clients' part is
    ``client_method: feddyn``, with the same α. Where ``max_client_norm`` clips, h has the clipped
    update, and the client's ``g_k`` the whole one: h is then not their mean any more. The other
    argument and the errors are those of :class:`~fednnnn_plugin.PaperFedAvg`.

    Args:
        feddyn_alpha: α > 0.

    Source: Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama, "Federated Learning Based on
    Dynamic Regularization", ICLR 2021 (arXiv 2111.04263), algorithm 1.
    """

    def __init__(self, params: Params, feddyn_alpha: float) -> None:
        defaults = {"alpha": ALPHA.checked("feddyn_alpha", feddyn_alpha)}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None, *, clients: int = 0, population: int = 0) -> Any:
        """Make a step; ``clients`` were accepted of a ``population`` of K."""
        if not 0 < clients <= population:
            raise UserError(
                "FedDyn.step",
                f"{clients} clients of {population}",
                "must be from 1 to K, as a simulation gives them",
            )
        check_finite(self)
        for group in self.param_groups:
            ALPHA.checked("feddyn_alpha", group["alpha"])
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                moved = parameter.grad * (clients / population)  # of h / α
                state["h"] = state["h"].add_(moved) if "h" in state else moved
                parameter.sub_(parameter.grad).sub_(state["h"])
