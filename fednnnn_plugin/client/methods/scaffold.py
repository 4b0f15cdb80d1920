"""SCAFFOLD: control variates against client drift."""

from torch import Tensor

from fednnnn_plugin.client.method import ClientMethod, LocalUpdate, Vectors


class Scaffold(ClientMethod):
    r"""SCAFFOLD with option II (Karimireddy et al. 2020, algorithm 1).

    Client k takes T steps and then estimates its own gradient by their mean:

    .. math::
        w ← w - η \left( ∇ℓ(w; b) + λ w + c - c_k \right), \quad
        c_k^+ = c_k - c + \frac{w_t - w_k}{T η}

    The server adds up what changed, over the accepted clients A of K:

    .. math:: c ← c + \frac{|A|}{K} \sum_{k ∈ A} α_k (c_k^+ - c_k)

    All variates start at 0. With ``client_weighting: uniform`` c is the mean of all ``c_k``, as in
    the source; with ``samples`` it stands for the weighted one. The decay λ counts as part of the
    gradient. A client whose update is rejected keeps the ``c_k`` that it had. The server's step is
    any rule's: the source's global step size is PaperFedAvg's, at 1.
    """

    sends = ("c",)
    keeps = ("c_k",)
    returns = ("change",)
    needs_plain_sgd = True

    def correction(self, sent: Vectors, kept: Vectors) -> Tensor:
        """Return ``c - c_k``."""
        return sent["c"] - kept["c_k"]

    def finish_client(self, local: LocalUpdate) -> tuple[Vectors, Vectors]:
        """Return ``c_k^+``, and by how much it differs from ``c_k``."""
        change = -local.sent["c"] - local.update / (local.steps * local.learning_rate)
        return {"c_k": local.kept["c_k"] + change}, {"change": change}

    def finish_round(self, sent: Vectors, returned: Vectors, share: float) -> Vectors:
        """Return the next ``c``."""
        return {"c": sent["c"] + share * returned["change"]}
