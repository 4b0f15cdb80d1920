"""FedProx, the paper's second baseline."""

from fednnnn_plugin.server.rules import rule
from fednnnn_plugin.server.rules.fedavg import PaperFedAvg


@rule(client_method="fedprox", place=2)
class PaperFedProx(PaperFedAvg):
    r"""FedProx (Li et al. 2020; paper, eq. 7): at the server a step by the average update.

    .. math:: w_{t+1} = w_t + η S

    Arguments and errors are those of :class:`~fednnnn_plugin.PaperFedAvg`. The proximal term is the
    clients', in ``client/methods/fedprox.py``.
    """
