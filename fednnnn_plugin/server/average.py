"""Streaming aggregation of client models: the average update and the NWDA norms."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.server.admission import check_client, check_global, checked_positive
from fednnnn_plugin.server.layout import Layout, ModelState, State
from fednnnn_plugin.server.norms import part_norms
from fednnnn_plugin.server.sum import BinnedSum
from fednnnn_plugin.server.update import Clients, LayerNorms, Update

# A client's buffers differ in scale: an attention mask of -1e9 beside a running variance of 0.01,
# or, where one is beyond _HUGE, float32's least number beside it.
_BUFFER_FOLDS, _HUGE_FOLDS, _HUGE = 3, 6, 1e12
# Of a group's update: its clients share a grid, which may be coarse for the shortest of them.
_GROUP_FOLDS = 2


class UpdateAccumulator:
    r"""Adds client models one at a time, in memory that does not grow with their number.

    For clients ``w_k`` with weights ``a_k`` and ``α_k = a_k / Σ a`` it gives (paper, eqs. 2 to 5)

    .. math::
        Δ_k = w_k - w_t, \quad S = \sum_k α_k Δ_k, \quad N = \lVert S \rVert_2, \quad
        E = \sum_k α_k \lVert Δ_k \rVert_2

    over the trainable parameters, of the whole model and of each module.

    The result has the same bits whatever the order of the clients and however they were dealt to
    accumulators that were merged (see :class:`~fednnnn_plugin.server.sum.BinnedSum`). Each element
    of a client's contribution is rounded once, by at most ``2^-41`` of the client's norm; a client
    whose weighted update is below ``2^-48`` of another's may add nothing to S. The exact range: up
    to 32,767 clients, one more is an error; each with a ``‖Δ_k‖`` that is finite in the dtype of S
    and a ``‖Δ_k‖²`` that is finite in float64, else it is rejected. Below about 1e-150, which only
    float64 reaches, norms and updates may round to zero.

    Buffers are averaged as they are, not as differences: a running variance stays positive. Those
    of a model may differ in scale as far as float32 reaches.

    Args:
        global_state: ``w_t`` with its buffers; name -> tensor. It is copied.
        trainable: names in ``global_state`` that were trained: floating point, any shape.
        max_client_norm: ``c``: a longer update counts as ``Δ_k · c / ‖Δ_k‖`` in S, E and the
            records; None leaves every update as it is.

    Raises:
        UserError: a trainable name that is not in the state or not floating point; a
            ``max_client_norm`` that is not positive and finite.

    Example:
        >>> import torch
        >>> acc = UpdateAccumulator({"w": torch.zeros(2)}, ["w"])
        >>> acc.add({"w": torch.tensor([3.0, 0.0])}, 1.0)
        True
        >>> acc.add({"w": torch.tensor([0.0, 4.0])}, 1.0)
        True
        >>> update = acc.finish()
        >>> update.mean_update["w"], update.mean_update_norm, update.mean_client_norm
        (tensor([1.5000, 2.0000]), 2.5, 3.5)
    """

    def __init__(
        self, global_state: State, trainable: Iterable[str], max_client_norm: float | None = None
    ) -> None:
        trainable = set(trainable)
        check_global(global_state, trainable)
        if max_client_norm is not None:
            max_client_norm = checked_positive("max_client_norm", max_client_norm)
        self.layout = layout = Layout(global_state, trainable)
        self.known = Clients()
        self._w_t = layout.flatten(global_state)
        self._max_client_norm = max_client_norm
        self.device = self._w_t.device
        self.updates = BinnedSum(layout.size, self.device, _GROUP_FOLDS)
        self._buffers = BinnedSum(layout.floating.size, self.device, _HUGE_FOLDS)
        least = torch.iinfo(torch.int64).min
        self._maxima = torch.full((layout.integer.size,), least, device=self.device)

    @property
    def clients(self) -> int:
        """How many clients were accepted so far."""
        return len(self.known.rows)

    @property
    def rejected(self) -> int:
        """How many clients were not."""
        return self.known.rejected

    def add(self, client_state: State, weight: float) -> bool:
        """Add one client's model; it is read only.

        Args:
            client_state: ``w_k``: the names and shapes of the global state; buffers included.
            weight: ``a_k``, positive and finite: 1 for every client, or its number of samples.

        Returns:
            False if the client was rejected: an element (of a buffer, too) is NaN or infinite, or
            the update is beyond the exact range. It only counts in ``rejected``.

        Raises:
            UserError: missing or extra names, another shape or kind of number, a weight that is
                not positive and finite.
        """
        weight, forms = checked_positive("client weight", weight), self.layout.forms
        check_client(client_state, forms)
        difference = self.layout.flatten(client_state).to(self.device).sub_(self._w_t)
        # In the model's own dtype a wider client's buffer may overflow.
        buffers = {name: client_state[name].to(forms[name][1]) for name in self.layout.buffers}
        return self._add(difference.unsqueeze(0), buffers, [weight])[0]

    def add_group(self, models: ModelState, weights: Sequence[float]) -> list[bool]:
        """Add m models ``[m, d]`` and ``[m, …]`` at once; return which were accepted.

        It takes a number of tensor operations that m does not change, and one wait of the host.
        """
        return self._add(models.vector - self._w_t, models.buffers, weights)

    def _add(self, differences: Tensor, buffers: State, weights: Sequence[float]) -> list[bool]:
        m = len(differences)
        floating, integer = (
            block.flatten(buffers, models=(m,)).to(self.device)
            for block in (self.layout.floating, self.layout.integer)
        )
        norms = part_norms(differences, self.layout.modules)
        # The largest element of each client's buffers; 0 where there are none.
        peaks = floating.abs().amax(1, keepdim=True) if floating.shape[1] else floating.sum(1, True)
        largest = math.inf if self._max_client_norm is None else self._max_client_norm
        places, part, update_terms, buffer_terms = [], Clients(), [], []
        measured: list[list[float]] = torch.cat([norms, peaks], 1).tolist()
        for k, ((*layers, peak), weight) in enumerate(zip(measured, weights, strict=True)):
            square = sum(layer * layer for layer in layers)
            norm = math.sqrt(square)
            if not (norm <= torch.finfo(self.layout.dtype).max and math.isfinite(peak)):
                part.rejected += 1
                continue
            shrink = largest / norm if norm > largest else 1.0
            shrunk = (layer * shrink for layer in layers)
            part.rows.append((weight, min(norm, largest), square * shrink**2, *shrunk))
            mantissa, exponent = math.frexp(weight)
            update_terms.append((mantissa * shrink, exponent, mantissa * shrink * norm))
            buffer_terms.append((mantissa, exponent, mantissa * peak))
            places.append(k)
        self.known.merge(part)
        if 0 < len(places) < m:
            chosen = torch.tensor(places).to(self.device)
            differences, floating, integer = (x[chosen] for x in (differences, floating, integer))
        if places:
            self.updates.add(differences, update_terms, 1 if m == 1 else _GROUP_FOLDS)
            huge = max(measured[k][-1] for k in places) > _HUGE
            self._buffers.add(floating, buffer_terms, _HUGE_FOLDS if huge else _BUFFER_FOLDS)
            self._maxima = torch.maximum(self._maxima, integer.amax(0))
        return [k in places for k in range(m)]

    def fail(self) -> None:
        """Count a client that had no model to add: its training raised, or gave another shape."""
        self.known.merge(Clients(rejected=1, failed=1))

    def merge(self, other: "UpdateAccumulator") -> None:
        """Add the partial sums of another accumulator over the same global state.

        Raises:
            UserError: other names, shapes or dtypes, or in another order; other trainable names;
                another ``max_client_norm``.
        """
        if self._form() != other._form():
            raise UserError("UpdateAccumulator.merge: the other one is over another global state")
        self.known.merge(other.known)
        self.updates.merge(other.updates)
        self._buffers.merge(other._buffers)
        self._maxima = torch.maximum(self._maxima, other._maxima.to(self.device))

    def _form(self) -> object:
        return [*self.layout.forms.items()], self.layout.entries, self._max_client_norm

    def combine(
        self, exchange: Callable[[Any], list[Any]], add_up: Callable[[Tensor], Tensor | None]
    ) -> bool:
        """Become the sum of the parts of several processes, which all call this.

        ``exchange`` gives what every process gave. ``add_up`` gives the sum of their int64 vectors,
        on the CPU, or None on a process that is not to have it; return whether this one has it.
        """
        vectors = (self.updates, self._buffers)
        parts = exchange((self.known, self._maxima.tolist(), [[*v.bins] for v in vectors]))
        for k, vector in enumerate(vectors):
            vector.use({bin_ for *_, bins in parts for bin_ in bins[k]})
        own = [total for vector in vectors for total in vector.bins.values()]
        nothing = torch.empty(0, dtype=torch.int64)
        sums = add_up(torch.cat([nothing, *(total.cpu() for total in own)]))
        if sums is None:
            return False
        for total, together in zip(own, sums.split([len(x) for x in own]), strict=True):
            total.copy_(together)
        self.known = Clients()
        for known, *_ in parts:
            self.known.merge(known)
        maxima = [highest for _, highest, _ in parts]
        self._maxima = torch.tensor(maxima, dtype=torch.int64).amax(0).to(self.device)
        return True

    def finish(self) -> Update:
        """Divide by the exact sum of the accepted weights.

        Raises:
            UserError: no client was accepted.
        """
        known, layout = self.known, self.layout
        if not known.rows:
            raise UserError(f"no client update to average: {self.rejected} rejected, none accepted")
        total, unit = known.weighted(), -known.exponent()
        vector = self.updates.total(total, layout.dtype, unit)
        own = part_norms(vector, layout.modules).tolist()
        norm, square, *layers = (
            known.weighted(column) / total for column in range(1, len(known.rows[0]))
        )
        norms = [row[1] for row in known.rows]
        buffers = layout.floating.views(self._buffers.total(total, torch.float64, unit))
        buffers |= layout.integer.views(self._maxima)
        return Update(
            vector=vector,
            layout=layout,
            # Proposition 1 holds for the exact values; rounding must not break it by an ulp.
            mean_update_norm=min(math.sqrt(math.fsum(x * x for x in own)), norm),
            mean_client_norm=norm,
            mean_client_square=square,
            layers={
                module: LayerNorms(min(n, e), e)
                for module, n, e in zip(layout.modules, own, layers, strict=True)
            },
            buffers={n: buffers[n].to(layout.forms[n][1], copy=True) for n in layout.buffers},
            clients=len(norms),
            rejected=known.rejected,
            client_norms=(min(norms), statistics.median(norms), max(norms)),
        )
