"""The clients of a silos' round: what they sent, what of it is averaged, and who is left out."""

import logging
import math
from collections.abc import Sequence
from typing import Any

from torch import nn

from fednnnn_plugin.client.replica import named_tensors
from fednnnn_plugin.errors import RunError, UserError
from fednnnn_plugin.fedml.model_states import client_state
from fednnnn_plugin.fedml.security import (
    ClientModel,
    global_privacy,
    is_changing,
    is_finite,
    secured,
    security_settings,
)
from fednnnn_plugin.fedml.silos import client_ids
from fednnnn_plugin.quantities import ClientRecord, Outcome
from fednnnn_plugin.server.admission import as_float
from fednnnn_plugin.server.average import ClientSum
from fednnnn_plugin.server.clients import AcceptedClient
from fednnnn_plugin.server.layout import Layout

_log = logging.getLogger(__name__)
_NO_DATA = "no data"


class RoundClients:
    """The clients of one round after another, by their positions in FedML's list of models.

    They train ``model``, whose tensors are in ``layout``. Of them ``limit`` may fail in a round;
    ``number`` is that of the first one.
    """

    def __init__(
        self, args: Any, model: nn.Module, layout: Layout, limit: int, number: int
    ) -> None:
        self._args, self._ids, self._limit = args, client_ids(args), limit
        self._model, self._layout = model, layout
        self._without_data: set[int | str] = set()  # of which this was said
        self.begin(number)

    def begin(self, number: int) -> None:
        """Forget the round before this one."""
        self._number, self._failed = number, 0
        self._places: list[int] = []  # of the models that are to be averaged
        self._left_out: list[ClientRecord] = []
        self._sent_norms: dict[int | str | None, float] = {}  # before FedML's defences changed them

    def receive(
        self, number: int, models: Sequence[ClientModel]
    ) -> tuple[list[ClientModel], list[int]]:
        """Return the models of a round that fit ours and that FedML lets pass, and their positions.

        Raises:
            UserError: too many do not fit.
            RunError: fewer have data and are finite than FedML's defence needs.
        """
        self.begin(number)
        sent: dict[int, ClientModel] = {}
        for position, (samples, state) in enumerate(models):
            if as_float(samples) == 0:  # FedML weights it with 0; a defence may choose it
                self._leave_out_without_data(position)
                continue
            try:
                sent[position] = samples, client_state(self._model, state)
            except UserError as error:
                self._fail(position, error)
        if is_changing():
            sent = self._secured(sent, len(models))
        self._places = list(sent)
        return list(sent.values()), self._places

    def _secured(self, sent: dict[int, ClientModel], total: int) -> dict[int, ClientModel]:
        """Return the models that FedML lets pass of what clients sent, as it changes them."""
        w_t, layout, finite = named_tensors(self._model), self._layout, dict[int, ClientModel]()
        start = layout.flatten(w_t)
        for position, (samples, state) in sent.items():
            norm = float((layout.flatten(state).to(start) - start).norm())
            if math.isfinite(norm):
                self._sent_norms[self._id(position)] = norm
            if is_finite(state):
                finite[position] = samples, state
            else:
                _log.warning("%s: update rejected: not finite", self._name(position))
                self._leave_out(position, "not finite", "rejected")
        kept = secured(finite, total, w_t)
        for position in sorted(finite.keys() - kept.keys()):
            self._leave_out(position, f"by {self._args.defense_type}")
        return kept

    def add_to(self, part: ClientSum, models: Sequence[ClientModel], *, uniform: bool) -> None:
        """Add the models that were received, of ``uniform`` weight or by their numbers of samples.

        Raises:
            UserError: too many models or numbers that cannot be added.
            RunError: none can.
        """
        places = self._places if len(self._places) == len(models) else range(len(models))
        for position, (samples, model) in zip(places, models, strict=True):
            try:
                weight = 1.0 if uniform else samples
                part.add(model, weight, self._name(position), self._id(position))
            except UserError as error:
                self._fail(position, error)
        if not part.clients:
            empty = sum(client.why == _NO_DATA for client in self._left_out)
            raise RunError(
                f"round {self._number}: no client update to average: {empty} have no data, all "
                "others were rejected or left out"
            )
        part.seen.accepted = [self._as_sent(client) for client in part.seen.accepted]
        part.seen.others += self._left_out
        part.seen.rejected += sum(client.outcome == "rejected" for client in self._left_out)

    def _as_sent(self, client: AcceptedClient) -> AcceptedClient:
        """Return a client with the norm of what it sent, and whether FedML clipped that.

        Global privacy clips the model ``w_k``, whose update may then be the longer one.
        """
        sent = self._sent_norms.get(client.client, client.sent_norm)
        change = sent - client.sent_norm
        if global_privacy():
            change = abs(change)
        elif security_settings(self._args).get("defense_type") != "norm_diff_clipping":
            change = 0.0  # an attack's, say
        clipped = client.clipped or change > 0.001 * client.sent_norm
        return client._replace(sent_norm=sent, clipped=clipped)

    def _id(self, position: int) -> int | str:
        """Return a client as FedML's log names it: the rank that it sends from."""
        found = self._ids[position] if position < len(self._ids) else position + 1
        return found if isinstance(found, int) and found >= 0 else str(found)

    def _name(self, position: int) -> str:
        """Name a client in the log."""
        return f"round {self._number}: the client of rank {self._id(position)}"

    def _fail(self, position: int, error: UserError) -> None:
        """Leave out a client whose model cannot be used, or raise where too many have failed."""
        self._failed += 1
        if self._failed > self._limit:
            raise UserError(self._name(position), error) from None
        _log.warning("%s: %s: left out", self._name(position), error)
        self._leave_out(position, str(error))

    def _leave_out_without_data(self, position: int) -> None:
        self._leave_out(position, _NO_DATA)
        if (client := self._id(position)) not in self._without_data:
            self._without_data.add(client)
            _log.warning("%s: has no data: left out of the average", self._name(position))

    def _leave_out(self, position: int, why: str, outcome: Outcome = "left out") -> None:
        """Record that a client is not averaged."""
        client = self._id(position)
        norm = self._sent_norms.get(client)
        self._left_out.append(ClientRecord(client, outcome, norm, why=why))
