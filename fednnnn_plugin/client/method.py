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
    is. Each vector that is sent or kept has an element for each trained parameter, in the order of
    the model's, in its dtype, and is 0 at first. The engine carries them to any number of
    processes, and into checkpoints. All methods get and give the vectors of m clients as rows, and
    change none in place.

    Attributes:
        keys: the recipe's keys in ``train_args``, each with its range; ``__init__`` gets them.
        sends: names of the vectors that the server keeps and sends beside ``w_t``.
        keeps: names of the vectors that each client keeps until it trains again.
        returns: names of the vectors that a client returns beside its model.
        needs_plain_sgd: the client's optimizer must be ``sgd`` without arguments.
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
        """Return what each client keeps and what it returns, by all their names, ``[m, d]``."""
        return {}, {}

    def finish_round(self, sent: Vectors, returned: Vectors, share: float) -> Vectors:
        """Return what the server sends in the next round, by all names, ``[d]``.

        ``returned`` are the means ``Σ α_k r_k`` over the accepted clients, and ``share`` is how
        many these are of all K.
        """
        return {}

    @property
    def has_vectors(self) -> bool:
        """Whether vectors are sent, kept or returned, or steps corrected."""
        cls = type(self)
        corrects = cls.correction is not ClientMethod.correction
        return bool(corrects or cls.sends or cls.keeps or cls.returns)
