"""The seam of a client method: what clients do beside plain local SGD, keep, upload and return."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fednnnn_plugin.server.rules import Key

#: Vectors by name: ``[d]`` each, or of m clients ``[m, d]``; ``[1]`` or ``[m, 1]`` of a scalar.
Vectors = Mapping[str, Tensor]
#: The gradients ``∇ℓ(w; b)`` of m clients at points ``[m, d]``, each on its batch of the step.
GradientAt = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class LocalStep:
    """Where m clients are in their training.

    Attributes:
        number: of the step, ``[m, 1]``: how many each client has made in this round.
        learning_rate: η of the round.
        served: ``w_t``, ``[d]``.
        sent: what the server sent beside ``w_t``, each ``[d]``.
        kept: what each client had kept, each ``[m, d]``.
    """

    number: Tensor
    learning_rate: float
    served: Tensor
    sent: Vectors
    kept: Vectors


@dataclass(frozen=True)
class LocalUpdate:
    """What m clients that trained in one round did.

    Attributes:
        update: ``Δ_k = w_k - w_t``, ``[m, d]``.
        served: ``w_t``, ``[d]``.
        steps: how many steps each took, ``[m, 1]``.
        mean_steps: ``Σ α_k T_k`` over all clients of the round, whether or not one fails.
        weights: ``a_k``, ``[m, 1]``: 1, or the number of samples.
        learning_rate: η of the round.
        sent: what the server sent beside ``w_t``, each ``[d]``.
        kept: what each client had kept, each ``[m, d]``.
        uploaded: ``Δ'_k`` of :meth:`ClientMethod.upload`, ``[m, d]``; in that call ``Δ_k``.
    """

    update: Tensor
    served: Tensor
    steps: Tensor
    mean_steps: float
    weights: Tensor
    learning_rate: float
    sent: Vectors
    kept: Vectors
    uploaded: Tensor


class ClientMethod:
    r"""What a method changes at the clients; this one changes nothing. Subclass it.

    A client's step is

    .. math:: w \leftarrow w - η \left( g + λ w + μ (w - w_t) + h_k \right)

    with g of :meth:`gradient`, which is :math:`\nabla \ell(w; b)`, μ of ``prox_mu`` and :math:`h_k`
    of :meth:`correction`. Where a method gives g or :math:`h_k`, the gradient of a parameter that a
    step's loss does not reach is 0; else that parameter stays as it is. What a client contributes
    to S, N, E and to every norm on record is :math:`Δ'_k` of :meth:`upload`, which is
    :math:`Δ_k = w_k - w_t`.

    Each vector has the shape ``[d]``, one element for each scalar of the trained parameters, and
    the dtype of the model; those in ``scalars`` have ``[1]``. What is sent or kept is initially 0.
    The engine sends the vectors to any number of processes and stores them in checkpoints, unlike
    attributes that a method changes in a round, of which the run warns. Those of m clients are the
    rows of a matrix ``[m, d]``, each of which is to be computed of its client's rows alone: on a
    CPU m is 1 unless ``client_batching`` says otherwise. The elements have the order of
    ``named_parameters()``, those of a module together. The methods are called without gradients and
    must not change their arguments in place, except ``sent`` in ``finish_round``. An exception, a
    missing name or a wrong shape is a ``UserError`` before round 1, where all are tried on zeros,
    and a ``RunError`` later.

    Attributes:
        keys: the settings, which a recipe sets in ``train_args``, each with its range; they are
            passed to ``__init__`` by keyword.
        sends: names of the vectors that the server keeps and sends beside ``w_t``.
        keeps: names of the vectors that each client keeps until it trains again.
        returns: names of the vectors that a client returns beside its model.
        scalars: which of all these are single numbers, ``[1]`` in place of ``[d]``.
        evaluations: how many gradients :meth:`gradient` computes in a step, at most.
        needs_plain_sgd: the client's optimizer must be ``sgd`` without ``client_optimizer_args``
            and ``max_grad_norm``.
        prox_mu: μ ≥ 0 of the proximal term.
    """

    keys: ClassVar[Mapping[str, Key]] = {}
    sends: ClassVar[tuple[str, ...]] = ()
    keeps: ClassVar[tuple[str, ...]] = ()
    returns: ClassVar[tuple[str, ...]] = ()
    scalars: ClassVar[tuple[str, ...]] = ()
    evaluations: ClassVar[int] = 1
    needs_plain_sgd: ClassVar[bool] = False
    prox_mu: float = 0.0

    def correction(self, sent: Vectors, kept: Vectors) -> Tensor | None:
        """Return :math:`h_k`, the same in all steps of a round: ``[m, d]``, or ``[1, d]`` for all.

        None is 0.
        """
        return None

    def gradient(self, weights: Tensor, gradient_at: GradientAt, step: LocalStep) -> Tensor:
        r"""Return g of a step, ``[m, d]``, which may depend on the weights ``[m, d]`` of now.

        ``gradient_at(points)`` gives the gradients of the step's batch at any points ``[m, d]``, at
        most ``evaluations`` times in a step. The buffers, such as batch normalisation's, are those
        after the first. Of a group, clients that have no batch left are not among the rows.
        """
        return gradient_at(weights)

    def upload(self, local: LocalUpdate) -> Tensor | tuple[Tensor, Tensor]:
        """Return :math:`Δ'_k`, ``[m, d]``, instead of ``local.update``; buffers stay.

        It may be a pair with weights ``[m, 1]``, positive and finite, which replace ``a_k``.
        ``max_client_norm`` clips what is uploaded.
        """
        return local.update

    def finish_client(self, local: LocalUpdate) -> tuple[Vectors, Vectors]:
        """Return two dicts, of all vectors in ``keeps`` and in ``returns``, ``[m, d]`` each."""
        return {}, {}

    def finish_round(self, sent: Vectors, returned: Vectors, share: float) -> Vectors:
        """Return all vectors in ``sends`` for the next round, ``[d]`` each.

        ``returned`` has the weighted means ``Σ α_k r_k`` over the accepted clients. ``share`` is
        their number divided by K, in (0, 1].
        """
        return {}


def replaces(method: ClientMethod, name: str) -> bool:
    """Tell whether a method has a function of this name of its own, such as ``correction``."""
    return getattr(type(method), name) is not getattr(ClientMethod, name)


def has_vectors(method: ClientMethod) -> bool:
    """Tell whether a method does more than to add a proximal term."""
    functions = ("correction", "gradient", "upload", "finish_client", "finish_round")
    own = any(replaces(method, name) for name in functions)
    return own or bool(method.sends or method.keeps or method.returns)


def length(method: ClientMethod, names: Sequence[str], size: int) -> int:
    """Return how many numbers a method's vectors of these names have, of a model of ``size``."""
    return sum(1 if name in method.scalars else size for name in names)
