"""FedNova: updates normalised by the number of local steps."""

from torch import Tensor

from fednnnn_plugin.client.method import ClientMethod, LocalUpdate


class FedNova(ClientMethod):
    r"""FedNova of plain SGD (Wang, Liu, Liang, Joshi, Poor 2020, arXiv 2007.07481, eqs. 8 and 9).

    A client of :math:`T_k` steps uploads

    .. math:: Δ'_k = \frac{\bar T}{T_k} Δ_k, \quad \bar T = \sum_k α_k T_k

    so that with ``PaperFedAvg`` the server's step is the source's,
    :math:`τ_{eff} \sum_k p_k Δ_k / T_k` with :math:`τ_{eff} = \bar T` and :math:`p_k = α_k`, and a
    client that makes more steps has no more weight than its ``α_k``. :math:`\bar T` is over the
    clients that were drawn, also where one of them fails. S, N and E are of :math:`Δ'_k`: any
    server rule has them in the usual scale.

    The vector of a client's steps is all ones: those of momentum or of a proximal term would not
    be, so that another optimizer is refused, and ``fedprox`` is another method.
    """

    needs_plain_sgd = True

    def upload(self, local: LocalUpdate) -> Tensor:
        """Return ``Δ'_k``."""
        return local.update * (local.mean_steps / local.steps)
