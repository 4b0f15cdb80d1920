"""What is known of a round's clients, and what they add up to."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.server.layout import Layout
from fednnnn_plugin.server.sum import BinnedSum


class AcceptedClient(NamedTuple):
    """What a round's norms are made of.

    Attributes:
        weight: ``a_k``.
        norm: ``‖Δ_k‖``.
        square: ``‖Δ_k‖²``.
        layer_norms: ``‖Δ_k‖`` of each module.
    """

    weight: float
    norm: float
    square: float
    layer_norms: tuple[float, ...]


@dataclass
class Clients:
    """The clients so far: the accepted ones, and how many were not, or had no model at all.

    ``clipped`` of the accepted ones had a longer update, or change of buffers, than may be.
    """

    accepted: list[AcceptedClient] = field(default_factory=list)
    rejected: int = 0
    failed: int = 0
    clipped: int = 0

    def merge(self, other: "Clients") -> None:
        """Add others, if all of them add up exactly."""
        count, most = len(self.accepted) + len(other.accepted), BinnedSum.MAX_TERMS
        if count > most:
            raise UserError(f"UpdateAccumulator: {count} clients: at most {most} add up exactly")
        self.accepted += other.accepted
        self.rejected += other.rejected
        self.failed += other.failed
        self.clipped += other.clipped

    @property
    def exponent(self) -> int:
        """That of a power of two above the sum of the weights."""
        highest = max(math.frexp(client.weight)[1] for client in self.accepted)
        return highest + len(self.accepted).bit_length()

    def weights(self) -> list[float]:
        """Return each ``a_k`` in units of ``2^exponent``, in which no sum overflows."""
        unit = -self.exponent
        return [math.ldexp(client.weight, unit) for client in self.accepted]

    def mean(self, values: Iterable[float]) -> float:
        """Return ``Σ α_k x_k``. ``math.fsum`` is exact: no order of the clients changes it."""
        weights = self.weights()
        terms = (weight * value for weight, value in zip(weights, values, strict=True))
        return math.fsum(terms) / math.fsum(weights)

    def orthogonal_norm(self) -> float:
        """Return ``√(Σ α_k² ‖Δ_k‖²)``."""
        weights = self.weights()
        total = math.fsum(weights)
        pairs = zip(weights, self.accepted, strict=True)
        terms = [weight / total * client.norm for weight, client in pairs]
        longest = max(terms) or 1.0  # in units of it no square overflows
        return longest * math.sqrt(math.fsum((term / longest) ** 2 for term in terms))

    def mean_vector(self, total: BinnedSum, dtype: torch.dtype) -> Tensor:
        """Return ``Σ α_k x_k`` of vectors whose ``Σ a_k x_k`` this is."""
        return total.total(math.fsum(self.weights()), dtype, -self.exponent)


@dataclass(frozen=True)
class LayerNorms:
    """``N`` and ``E`` of the parameters of one module."""

    mean_update_norm: float
    mean_client_norm: float


@dataclass(frozen=True)
class Update:
    """The aggregate of a round's clients.

    Attributes:
        vector: ``S = Σ α_k Δ_k`` (eq. 3) as a vector ``[d]`` of float32 at least.
        layout: the names of the elements of ``vector``.
        mean_update_norm: ``N = ‖S‖₂`` (eq. 4) of the whole model.
        mean_client_norm: ``E = Σ α_k ‖Δ_k‖₂`` (eq. 5); ``N ≤ E`` (proposition 1).
        mean_client_square: ``Σ α_k ‖Δ_k‖₂²``.
        orthogonal_norm: ``√(Σ α_k² ‖Δ_k‖₂²)``, which ``N`` is if all updates are orthogonal.
        layers: both norms of every module that owns trainable parameters.
        buffers: every other entry of the model state: floating ones averaged with ``α_k``, integer
            ones the maximum over clients.
        clients: how many clients were accepted.
        rejected: how many were rejected.
        client_norms: minimum, median and maximum of ``‖Δ_k‖₂``.
        returned: ``Σ α_k r_k`` of each vector that clients return beside their models, ``[d]``.
    """

    vector: Tensor
    layout: Layout
    mean_update_norm: float
    mean_client_norm: float
    mean_client_square: float
    orthogonal_norm: float
    layers: dict[str, LayerNorms]
    buffers: dict[str, Tensor]
    clients: int
    rejected: int
    client_norms: tuple[float, float, float]
    returned: dict[str, Tensor] = field(default_factory=dict)

    @property
    def mean_update(self) -> dict[str, Tensor]:
        """``S`` by parameter name, views of the vector."""
        return self.layout.views(self.vector)
