r"""The average of a round's clients: S, its norm N, and E, the mean norm of their updates.

.. math::
    S = \sum_k α_k Δ_k, \quad N = \left\lVert S \right\rVert_2, \quad
    E = \sum_k α_k \left\lVert Δ_k \right\rVert_2

:meth:`ClientSum.add_group` measures each client's update, :meth:`ClientSum.finish` computes E, as
``mean_client_norm``; users call :class:`~fednnnn_plugin.UpdateAccumulator`, which works by names.
"""

import logging
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.server.admission import check_client, checked_positive
from fednnnn_plugin.server.buffers import BufferSum, Rows
from fednnnn_plugin.server.clients import AcceptedClient, Clients
from fednnnn_plugin.server.layout import Layout, ModelState, State
from fednnnn_plugin.server.norms import part_norms
from fednnnn_plugin.server.sum import BinnedSum, Term
from fednnnn_plugin.server.transfer import Arriving, to_device
from fednnnn_plugin.server.update import LayerNorms, Update

_log = logging.getLogger(__name__)
# Of a group's update: its clients share a grid, which may be coarse for the shortest of them.
_GROUP_FOLDS = 2
_UPDATE = ""  # among the names of what clients return


class MeasuredGroup(NamedTuple):
    """Updates of m clients, of which the measures ``[m, …]`` are on their way to the host."""

    vectors: Mapping[str, Tensor]
    rows: Rows
    measures: Arriving


class ClientSum:
    """Adds the clients of a round; :class:`~fednnnn_plugin.UpdateAccumulator` says what and how.

    Args:
        layout: where the tensors of the model stand.
        w_t: the model that they all started from; it is not copied, and must not change.
        max_client_norm: ``c``: a longer update, or change of buffers, is clipped to it.
        returns: lengths, by names, of the vectors ``r_k`` that clients return beside their models;
            their means ``Σ α_k r_k``, which are not clipped, are ``Update.returned``.
    """

    def __init__(
        self,
        layout: Layout,
        w_t: ModelState,
        max_client_norm: float | None = None,
        returns: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.layout, self.device, self.seen = layout, w_t.vector.device, Clients()
        self._w_t = w_t.vector
        self._longest = math.inf if max_client_norm is None else max_client_norm
        self._vectors = {  # Σ a_k Δ_k, and of what is returned
            name: BinnedSum(size, self.device, _GROUP_FOLDS)
            for name, size in {_UPDATE: layout.size, **returns}.items()
        }
        self._buffers = BufferSum(layout, w_t.buffers, self.device, self._longest)

    @property
    def clients(self) -> int:
        """How many clients were accepted so far."""
        return len(self.seen.accepted)

    @property
    def rejected(self) -> int:
        """How many clients were rejected so far."""
        return self.seen.rejected

    def add(
        self,
        client_state: State,
        weight: float,
        name: str = "a client",
        client: int | str | None = None,
    ) -> bool:
        """Add one client's model; it is read only.

        Args:
            client_state: ``w_k``: the names and shapes of the global state; an entry that is not
                trained, such as a frozen parameter, may be missing: it is as in ``w_t``.
            weight: ``a_k``, positive and finite: 1 for every client, or its number of samples.
            name: the client's name in the log.
            client: its number or name in the record.

        Returns:
            False if the client was rejected: an element, also of a buffer that it has moved, is NaN
            or infinite, or the update is outside the exact range. It is counted in ``rejected``
            only.

        Raises:
            UserError: missing trainable or extra names, another shape or kind of number, a weight
                that is not positive and finite.
        """
        weight = checked_positive("client weight", weight)
        check_client(client_state, self.layout.forms, self.layout.buffers)
        trained = self.layout.taken(client_state)
        update = trained.vector.to(self.device).sub_(self._w_t)
        changed = ModelState(update.unsqueeze(0), trained.buffers)
        return self.add_group(changed, [weight], [name], clients=[client])[0]

    def add_group(
        self,
        changed: ModelState,
        weights: Sequence[float],
        names: Iterable[str] = repeat("a client"),
        returned: Mapping[str, Tensor] = MappingProxyType({}),
        clients: Iterable[int | str | None] = repeat(None),
    ) -> list[bool]:
        """Add m updates ``Δ_k`` ``[m, d]``, with buffers ``[m, …]``; return which were accepted.

        ``names`` are those of the log, ``clients`` those of the record.
        ``returned`` are all that ``returns`` names, ``[m, …]``; what is not finite is rejected.
        It takes a number of tensor operations that m does not change, and one wait of the host.
        """
        return self.add_measured(self.measure(changed, returned), weights, names, clients)

    def measure(
        self, changed: ModelState, returned: Mapping[str, Tensor] = MappingProxyType({})
    ) -> MeasuredGroup:
        """Measure the updates of a group, before :meth:`add_measured`.

        The host waits only for a group of one client, to learn which of its buffers have moved. The
        updates may not change until then; the buffers may.
        """
        vectors = {**returned, _UPDATE: changed.vector}
        rows, measures = self._buffers.read(changed.buffers, len(changed.vector))
        others = (vectors[name] for name in self._vectors if name != _UPDATE)
        columns = [part_norms(each, {"": slice(0, each.shape[1])}) for each in others]
        columns += [part_norms(vectors[_UPDATE], self.layout.modules), measures]
        return MeasuredGroup(vectors, rows, Arriving(torch.cat(columns, 1)))

    def add_measured(
        self,
        measured: MeasuredGroup,
        weights: Sequence[float],
        names: Iterable[str] = repeat("a client"),
        clients: Iterable[int | str | None] = repeat(None),
    ) -> list[bool]:
        """Add the updates of a group, as :meth:`add_group`; here the host waits."""
        (vectors, rows, measures), longest, m = measured, self._longest, len(weights)
        group, places, peaks = Clients(), [], []
        terms: dict[str, list[Term]] = {name: [] for name in self._vectors}
        pairs = zip(measures.tolist(), weights, strict=True)
        for k, ((row, weight), name, client) in enumerate(zip(pairs, names, clients, strict=False)):
            lengths = row[: len(self._vectors) - 1]
            *layer_norms, peak, change, replaced = row[len(lengths) :]
            square = sum(layer * layer for layer in layer_norms)
            norm = math.sqrt(square)
            finite = max([norm, *lengths]) <= torch.finfo(self.layout.dtype).max
            finite = finite and math.isfinite(peak + change + sum(lengths))
            if not finite:
                _log.warning("%s: update rejected: not finite", name)
                group.reject(client, "not finite", norm)
                continue
            if replaced:
                _log.warning("%s: variances below 0 count as 0, impossible counts as w_t's", name)
            if change > longest:
                _log.warning("%s: its buffers moved by %.3g: clipped", name, change)
            clipped = norm > longest or change > longest
            shrink = longest / norm if norm > longest else 1.0
            layer_norms = tuple(layer * shrink for layer in layer_norms)
            group.accepted.append(
                AcceptedClient(
                    *(weight, min(norm, longest), square * shrink**2, layer_norms),
                    *(client, norm, clipped),
                )
            )
            places.append(k)
            terms[_UPDATE].append(Term.of(weight, shrink, norm))
            for each, length in zip([*terms.values()][1:], lengths, strict=True):
                each.append(Term.of(weight, 1.0, length))
            peaks.append(peak)
        self.seen.merge(group)
        if places:
            chosen = (
                slice(None) if len(places) == m else to_device(torch.tensor(places), self.device)
            )
            folds = 1 if m == 1 else _GROUP_FOLDS
            for name, total in self._vectors.items():
                total.add(vectors[name][chosen], terms[name], folds)
            self._buffers.add(rows.take(chosen), [weights[k] for k in places], peaks)
        return [k in places for k in range(m)]

    def fail(self, client: int | str | None = None, why: str = "") -> None:
        """Count a client that had no model to add: its training raised, or gave another shape."""
        self.seen.failed += 1
        self.seen.reject(client, why)

    def merge(self, other: "ClientSum") -> None:
        """Add the partial sums of another accumulator over the same global state.

        Raises:
            UserError: other names, shapes or dtypes, or in another order; other trainable names;
                another ``max_client_norm``.
        """
        if self._form() != other._form():
            raise UserError(
                "UpdateAccumulator.merge",
                "the other one has another global state, or another max_client_norm",
            )
        self.seen.merge(other.seen)
        for name, total in self._vectors.items():
            total.merge(other._vectors[name])
        self._buffers.merge(other._buffers)

    def _form(self) -> object:
        names = [*self._vectors]
        return [*self.layout.forms.items()], self.layout.entries, self._longest, names

    def combine(
        self, exchange: Callable[[Any], list[Any]], add_up: Callable[[Tensor], Tensor | None]
    ) -> bool:
        """Become the sum of the parts of several processes, which all call this.

        ``exchange`` gives what every process gave. ``add_up`` gives the sum of their int64 vectors,
        on the CPU, or None on a process that is not to have it; return whether this one has it.
        """
        bins = {key: [*total.bins] for key, total in self._sums.items()}
        maxima = self._buffers.maxima.tolist()
        parts = exchange((self.seen, bins, self._buffers.weights, maxima))
        self._buffers.become([part[2] for part in parts], [part[3] for part in parts])
        sums = self._sums
        for key, total in sums.items():
            total.align({bin_ for _, bins, *_ in parts for bin_ in bins.get(key, ())})
        vectors = [vector for total in sums.values() for vector in total.bins.values()]
        nothing = torch.empty(0, dtype=torch.int64)
        added = add_up(torch.cat([nothing, *(vector.cpu() for vector in vectors)]))
        if added is None:
            return False
        for vector, together in zip(vectors, added.split([len(x) for x in vectors]), strict=True):
            vector.copy_(together)
        self.seen = Clients()
        for seen, *_ in parts:
            self.seen.merge(seen)
        return True

    @property
    def _sums(self) -> dict[object, BinnedSum]:
        """All sums, in one order on all processes that have the same."""
        sums: dict[object, BinnedSum] = {("vector", n): x for n, x in self._vectors.items()}
        sums |= {("buffer", name): total for name, total in self._buffers.sums.items()}
        return sums

    def finish(self) -> Update:
        """Divide by the exact sum of the accepted weights.

        Raises:
            UserError: no client was accepted.
        """
        seen, modules = self.seen, self.layout.modules
        if not seen.accepted:
            hint = (
                "; where training diverges, a smaller learning_rate helps" if self.rejected else ""
            )
            raise UserError(
                "no client update to average", f"{self.rejected} rejected, none accepted{hint}"
            )
        weights, norms = seen.weights, [client.norm for client in seen.accepted]
        means = {n: weights.mean_vector(x, self.layout.dtype) for n, x in self._vectors.items()}
        vector = means.pop(_UPDATE)
        layer_norms = part_norms(vector, modules).tolist()
        mean_update_norm = math.sqrt(math.fsum(norm * norm for norm in layer_norms))  # N
        mean_client_norm = weights.mean(norms)  # E
        by_layer = zip(*(client.layer_norms for client in seen.accepted), strict=True)
        layers = zip(modules, layer_norms, map(weights.mean, by_layer), strict=True)
        return Update(
            vector=vector,
            layout=self.layout,
            # Proposition 1 holds for the exact values; rounding must not break it by an ulp.
            mean_update_norm=min(mean_update_norm, mean_client_norm),
            mean_client_norm=mean_client_norm,
            mean_client_square=weights.mean(client.square for client in seen.accepted),
            orthogonal_norm=weights.orthogonal_norm(norms),
            layers={module: LayerNorms(min(n, e), e) for module, n, e in layers},
            buffers=self._buffers.mean(weights),
            clients=len(norms),
            rejected=seen.rejected,
            client_norms=(min(norms), statistics.median(norms), max(norms)),
            returned=means,
            clipped=sum(client.clipped for client in seen.accepted),
            largest_share=max(weights.shares()),
            by_client=seen.records(),
        )
