"""The seam of a client method: what clients do beside plain local SGD, keep, and return."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fednnnn_plugin.server.rules import Key

#: Vectors by name: ``[d]`` each, or of m clients ``[m, d]``.
Vectors = Mapping[str, Tensor]


@dataclass(frozen=True)
class LocalUpdate:
    """What m clients that trained in one round did.

    Attributes:
        update: ``Δ_k = w_k - w_t``, ``[m, d]``.
        served: ``w_t``, ``[d]``.
        steps: how many steps each took, ``[m, 1]``.
        learning_rate: η of the round.
        sent: what the server sent beside ``w_t``, each ``[d]``.
        kept: what each client had kept, each ``[m, d]``.
    """

    update: Tensor
    served: Tensor
    steps: Tensor
    learning_rate: float
    sent: Vectors
    kept: Vectors


class ClientMethod:
    r"""What a method changes at the clients; this one changes nothing. Subclass it.

    A client's step is

    .. math:: w \leftarrow w - η \left( \nabla \ell(w; b) + λ w + μ (w - w_t) + h_k \right)

    with μ of ``prox_mu`` and :math:`h_k` of :meth:`correction`. Where there is a correction, the
    gradient of a parameter that a step's loss does not reach is 0; else that parameter stays as it
    is. Each vector has the shape ``[d]``, one element for each scalar of the trained parameters,
    and the dtype of the model. What is sent or kept is initially 0. The engine sends the vectors to
    any number of processes and stores them in checkpoints. Those of m clients are the rows of a
    matrix ``[m, d]``. The methods are called without gradients and must not change their arguments
    in place. An exception, a missing name or a wrong shape is a ``UserError`` before round 1, where
    all are tried on zeros, and a ``RunError`` later.

    Attributes:
        keys: the settings, which a recipe sets in ``train_args``, each with its range; they are
            passed to ``__init__`` by keyword.
        sends: names of the vectors that the server keeps and sends beside ``w_t``.
        keeps: names of the vectors that each client keeps until it trains again.
        returns: names of the vectors that a client returns beside its model.
        needs_plain_sgd: the client's optimizer must be ``sgd`` without ``client_optimizer_args``
            and ``max_grad_norm``.
        prox_mu: μ ≥ 0 of the proximal term.
    """

    keys: ClassVar[Mapping[str, Key]] = {}
    sends: ClassVar[tuple[str, ...]] = ()
    keeps: ClassVar[tuple[str, ...]] = ()
    returns: ClassVar[tuple[str, ...]] = ()
    needs_plain_sgd: ClassVar[bool] = False
    prox_mu: float = 0.0

    def correction(self, sent: Vectors, kept: Vectors) -> Tensor | None:
        """Return :math:`h_k`, ``[m, d]``, which is the same in all steps of a round; None is 0."""
        return None

    def finish_client(self, local: LocalUpdate) -> tuple[Vectors, Vectors]:
        """Return two dicts, of all vectors in ``keeps`` and in ``returns``, ``[m, d]`` each."""
        return {}, {}

    def finish_round(self, sent: Vectors, returned: Vectors, share: float) -> Vectors:
        """Return all vectors in ``sends`` for the next round, ``[d]`` each.

        ``returned`` has the weighted means ``Σ α_k r_k`` over the accepted clients. ``share`` is
        their number divided by K, in (0, 1].
        """
        return {}

    @property
    def has_vectors(self) -> bool:
        """Whether vectors are sent, kept or returned, or steps corrected."""
        cls = type(self)
        corrects = cls.correction is not ClientMethod.correction
        return bool(corrects or cls.sends or cls.keeps or cls.returns)
