"""The clients of a silos' round: what FedML's log calls them, what they sent, who is left out."""

import logging
import math
from collections.abc import Mapping
from typing import Any

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.fedml.silos import client_ids
from fednnnn_plugin.quantities import ClientRecord
from fednnnn_plugin.server.layout import Layout, ModelState, State

_log = logging.getLogger(__name__)


class RoundClients:
    """The clients of one round after another, by their positions in FedML's list of models.

    Of them ``limit`` may fail in a round; ``number`` is that of the first one.
    """

    def __init__(self, args: Any, limit: int, number: int) -> None:
        self._ids, self._limit = client_ids(args), limit
        self._without_data: set[int | str] = set()  # of which this was said
        self.begin(number)

    def begin(self, number: int) -> None:
        """Forget the round before."""
        self._number, self._failed = number, 0
        self.left_out: list[ClientRecord] = []
        self.sent_norms: dict[int | str, float] = {}  # before FedML's defences changed them

    def id(self, position: int) -> int | str:
        """Return a client as FedML's log names it: the rank that it sends from."""
        found = self._ids[position] if position < len(self._ids) else position + 1
        return found if isinstance(found, int) and found >= 0 else str(found)

    def name(self, position: int) -> str:
        """Name a client in the log."""
        return f"round {self._number}: the client of rank {self.id(position)}"

    def fail(self, position: int, error: UserError) -> None:
        """Leave out a client whose model cannot be used, or raise where too many have failed."""
        self._failed += 1
        if self._failed > self._limit:
            raise UserError(self.name(position), error) from None
        _log.warning("%s: %s: left out", self.name(position), error)
        self.leave_out(position, str(error))

    def leave_out(self, position: int, why: str) -> None:
        """Record that a client is left out."""
        client = self.id(position)
        norm = self.sent_norms.get(client)
        self.left_out.append(ClientRecord(client, "left out", norm, why=why))
        if why == "no data" and client not in self._without_data:
            self._without_data.add(client)
            _log.warning("%s: has no data: left out of the average", self.name(position))

    def keep_norms(self, models: Mapping[int, State], layout: Layout, w_t: ModelState) -> None:
        """Keep the finite ``‖Δ_k‖`` of what clients sent."""
        for position, model in models.items():
            norm = float((layout.flatten(model).to(w_t.vector) - w_t.vector).norm())
            if math.isfinite(norm):
                self.sent_norms[self.id(position)] = norm
