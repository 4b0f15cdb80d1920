"""What a round's clients add up to."""

from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from fednnnn_plugin.quantities import ClientRecord
from fednnnn_plugin.server.layout import Layout

#: What norms are of: ``Δ_k = w_k - w_t``, or what a client method uploads in its place.
Measured = Literal["update", "upload"]


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
        clipped: how many of the accepted were clipped.
        population: K, of whom the clients were drawn; 0 where the server does not know it.
        largest_share: the largest ``α_k``.
        by_client: what became of the clients whose numbers were given.
        client_norms: minimum, median and maximum of ``‖Δ_k‖₂``.
        returned: ``Σ α_k r_k`` of each vector that clients return beside their models.
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
    clipped: int = 0
    population: int = 0
    largest_share: float = 0.0
    by_client: tuple[ClientRecord, ...] = ()

    @property
    def mean_update(self) -> dict[str, Tensor]:
        """``S`` by parameter name, views of the vector."""
        return self.layout.views(self.vector)
