"""FedYogi, a baseline: Yogi on the server."""

from torch import Tensor

from fednnnn_plugin.server.rules.fedadam import FedAdam, adaptive


@adaptive
class FedYogi(FedAdam):
    r"""FedYogi: Yogi on the server, applied to the average update.

    .. math::
        v_t = v_{t-1} - (1 - β_2) S^2 \operatorname{sign}(v_{t-1} - S^2)

    and the rest as :class:`~fednnnn_plugin.server.rules.fedadam.FedAdam`, including arguments,
    errors and source. v falls no faster than it rises, so that one large update does not fade
    at once.
    """

    def _move_second_moment(self, v: Tensor, square: Tensor, beta2: float) -> None:
        v.sub_((v - square).sign_().mul_(square).mul_(1 - beta2))
