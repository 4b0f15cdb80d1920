"""The clients of a round: what is measured of each accepted one, and who was not accepted."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.quantities import ClientRecord, kept_clients
from fednnnn_plugin.server.sum import BinnedSum
from fednnnn_plugin.server.weights import Weights


class AcceptedClient(NamedTuple):
    """What a round's norms are made of.

    Attributes:
        weight: ``a_k``.
        norm: ``‖Δ_k‖``.
        square: ``‖Δ_k‖²``.
        layer_norms: ``‖Δ_k‖`` of each module.
        client: its number or name, if it is known.
        sent_norm: ``‖Δ_k‖`` before clipping.
        clipped: its update, or the change of its buffers, was longer than may be.
    """

    weight: float
    norm: float
    square: float
    layer_norms: tuple[float, ...]
    client: int | str | None
    sent_norm: float
    clipped: bool


@dataclass
class Clients:
    """The clients so far: the accepted ones, and how many were not, or had no model at all.

    ``others`` are those that were not accepted, if they are known.
    """

    accepted: list[AcceptedClient] = field(default_factory=list)
    rejected: int = 0
    failed: int = 0
    others: list[ClientRecord] = field(default_factory=list)

    def merge(self, other: "Clients") -> None:
        """Add others, if all of them add up exactly."""
        count, most = len(self.accepted) + len(other.accepted), BinnedSum.MAX_TERMS
        if count > most:
            raise UserError(
                "UpdateAccumulator", f"{count} clients", f"at most {most} add up exactly"
            )
        self.accepted += other.accepted
        self.rejected += other.rejected
        self.failed += other.failed
        self.others += other.others

    def reject(self, client: int | str | None, why: str, norm: float = math.inf) -> None:
        """Count one that is not accepted."""
        self.rejected += 1
        if client is not None:
            known = norm if math.isfinite(norm) else None
            self.others.append(ClientRecord(client, "rejected", known, None, why))

    def records(self) -> tuple[ClientRecord, ...]:
        """Return what became of each client that is known."""
        shares = self.weights.shares()
        accepted = (
            ClientRecord(one.client, "clipped" if one.clipped else "accepted", one.sent_norm, share)
            for one, share in zip(self.accepted, shares, strict=True)
            if one.client is not None
        )
        return kept_clients([*accepted, *self.others])

    @property
    def weights(self) -> Weights:
        """``a_k`` of the accepted ones."""
        return Weights(tuple(client.weight for client in self.accepted))
