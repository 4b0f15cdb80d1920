"""What is known of a round's clients, and what they add up to."""

import math
from dataclasses import dataclass, field

from torch import Tensor

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.server.layout import Layout
from fednnnn_plugin.server.sum import BinnedSum


@dataclass
class Clients:
    """The clients so far: a row of each accepted one, how many were not, and had no model at all.

    ``clipped`` of the accepted ones had a longer update, or change of buffers, than may be.

    A row is the weight, ``‖Δ‖``, ``‖Δ‖²`` and ``‖Δ‖`` of each module.
    """

    rows: list[tuple[float, ...]] = field(default_factory=list)
    rejected: int = 0
    failed: int = 0
    clipped: int = 0

    def merge(self, other: "Clients") -> None:
        """Add others, if all of them add up exactly."""
        count, most = len(self.rows) + len(other.rows), BinnedSum.MAX_TERMS
        if count > most:
            raise UserError(f"UpdateAccumulator: {count} clients: at most {most} add up exactly")
        self.rows += other.rows
        self.rejected += other.rejected
        self.failed += other.failed
        self.clipped += other.clipped

    def exponent(self) -> int:
        """Return that of a power of two above the sum of the weights."""
        return max(math.frexp(row[0])[1] for row in self.rows) + len(self.rows).bit_length()

    def weighted(self, column: int | None = None) -> float:
        """Return ``Σ a_k x_k`` of a column, or ``Σ a_k``, in units of ``2^exponent``.

        In these no sum overflows. ``math.fsum`` is exact: no order of the rows changes it.
        """
        unit = -self.exponent()
        return math.fsum(
            math.ldexp(row[0], unit) * (1.0 if column is None else row[column]) for row in self.rows
        )


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
