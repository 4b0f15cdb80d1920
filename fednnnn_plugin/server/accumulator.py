"""Streaming aggregation of client models: the average update and the NWDA norms."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.server.admission import check_client, check_global, checked_weight
from fednnnn_plugin.server.buffers import BufferMean
from fednnnn_plugin.server.exact import FixedPointSum
from fednnnn_plugin.server.norms import CHUNK, by_module, chunk_square, owner, pieces, squared_norm
from fednnnn_plugin.server.tally import ClientTally


@dataclass(frozen=True)
class LayerNorms:
    """The two norms of one module: ``N`` and ``E`` of its own parameters."""

    mean_update_norm: float
    mean_client_norm: float


@dataclass(frozen=True)
class Update:
    """What one round of clients adds up to.

    Attributes:
        mean_update: ``S = Σ α_k Δ_k`` (eq. 3), by parameter name, in the parameter's dtype,
            in float32 at least.
        mean_update_norm: ``N = ‖S‖₂`` (eq. 4) of the whole model.
        mean_client_norm: ``E = Σ α_k ‖Δ_k‖₂`` (eq. 5); ``N ≤ E`` (proposition 1).
        mean_client_square: ``Σ α_k ‖Δ_k‖₂²``.
        layers: both norms of every module that owns trainable parameters.
        buffers: every other entry of the model state: floating ones averaged with ``α_k``, integer
            ones the maximum over clients.
        clients: how many clients were accepted.
        rejected: how many were not.
        client_norms: minimum, median and maximum of ``‖Δ_k‖₂``.
    """

    mean_update: dict[str, Tensor]
    mean_update_norm: float
    mean_client_norm: float
    mean_client_square: float
    layers: dict[str, LayerNorms]
    buffers: dict[str, Tensor]
    clients: int
    rejected: int
    client_norms: tuple[float, float, float]


class UpdateAccumulator:
    r"""Adds client models one at a time, in memory that does not grow with their number.

    For clients ``w_k`` with weights ``a_k`` and ``α_k = a_k / Σ a`` it gives (paper, eqs. 2 to 5)

    .. math::
        Δ_k = w_k - w_t, \quad S = \sum_k α_k Δ_k, \quad N = \lVert S \rVert_2, \quad
        E = \sum_k α_k \lVert Δ_k \rVert_2

    over the trainable parameters, of the whole model and of each module.

    The result has the same bits whatever the order of the clients and however they were dealt to
    accumulators that were merged (see :class:`~fednnnn_plugin.server.exact.FixedPointSum`). Every
    element of a client's contribution is rounded once, by at most ``2^-32`` of that client's
    largest element; a client whose weighted update is below ``2^-31`` of another's may add nothing
    to S. The exact range: up to 32,767 clients, one more is an error; each with differences that
    are finite in the dtype of S and a ``‖Δ_k‖²`` that is finite in float64, else it is rejected.
    Below about 1e-150, which only float64 reaches, norms and updates may round to zero.

    Buffers are averaged as they are, not as differences, and the average is kept between the
    clients' minimum and maximum of each element: a running variance stays positive.

    Args:
        global_state: ``w_t`` with its buffers; name -> tensor. It is read, not copied: leave it as
            it is until :meth:`finish`.
        trainable: names in ``global_state`` that were trained: floating point, any shape.
        max_client_norm: ``c``: a longer update counts as ``Δ_k · c / ‖Δ_k‖`` in S, E and the
            records; None leaves every update as it is.

    Raises:
        UserError: a trainable name that is not in the state or not floating point.

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
        self,
        global_state: Mapping[str, Tensor],
        trainable: Collection[str],
        max_client_norm: float | None = None,
    ) -> None:
        wanted = set(trainable)
        check_global(global_state, wanted)
        self._global = {name: tensor.detach() for name, tensor in global_state.items()}
        self._trainable = [name for name in self._global if name in wanted]
        rest = {name: tensor for name, tensor in self._global.items() if name not in wanted}

        device = next((tensor.device for tensor in self._global.values()), torch.device("cpu"))
        self._max_client_norm = max_client_norm
        size = sum(self._global[name].numel() for name in self._trainable)
        self.updates = FixedPointSum(size, device)
        self._buffer_mean = BufferMean(rest, device)
        self.buffers = self._buffer_mean.sum
        self.bounds = self._buffer_mean.bounds
        self.tally = ClientTally.of(map(owner, self._trainable))

    @property
    def clients(self) -> int:
        """How many clients were accepted so far."""
        return len(self.tally.norms)

    @property
    def rejected(self) -> int:
        """How many clients were not."""
        return self.tally.rejected

    def add(self, client_state: Mapping[str, Tensor], weight: float) -> bool:
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
        weight = checked_weight(weight)
        check_client(client_state, self._global)
        squares, largest = self._measure(client_state)
        largest_buffer = self._buffer_mean.largest(client_state)
        norm = math.sqrt(sum(squares.values()))
        if not all(map(math.isfinite, (norm, largest, largest_buffer))):
            self.tally.non_finite += 1
            return False

        shrink = 1.0
        if self._max_client_norm is not None and norm > self._max_client_norm:
            shrink = self._max_client_norm / norm
        self.updates.add(self._update_chunks(client_state, shrink), weight, largest * shrink)
        self._buffer_mean.add(client_state, weight, largest_buffer)
        self.tally.add(squares, weight, shrink)
        return True

    def fail(self) -> None:
        """Count a client that had no model to add: its training raised, or gave another shape."""
        self.tally.failed += 1

    def merge(self, other: UpdateAccumulator) -> None:
        """Add the partial sums of another accumulator over the same global state.

        Raises:
            UserError: other names, shapes or dtypes, or in another order; other trainable names;
                another ``max_client_norm``.
        """
        if self._form() != other._form():
            raise UserError("UpdateAccumulator.merge: the other one is over another global state")
        self.updates.merge(other.updates)
        self._buffer_mean.merge(other._buffer_mean)
        self.tally.merge(other.tally)

    def finish(self) -> Update:
        """Divide by the exact sum of the accepted weights.

        Raises:
            UserError: no client was accepted.
        """
        tally = self.tally
        if not tally.norms:
            raise UserError(f"no client update to average: {self.rejected} rejected, none accepted")
        mean = {
            name: torch.empty_like(
                self._global[name],
                dtype=self._mean_dtype(name),
                memory_format=torch.contiguous_format,
            )
            for name in self._trainable
        }
        self.updates.mean_into(mean.values(), tally.weight)
        squares = {name: squared_norm(tensor) for name, tensor in mean.items()}
        update_norms = by_module(squares)
        client_norms = {name: total / tally.weight for name, total in tally.layer_norms.items()}
        mean_client_norm = tally.norm / tally.weight
        return Update(
            mean_update=mean,
            # Proposition 1 holds for the exact values; rounding must not break it by an ulp.
            mean_update_norm=min(math.sqrt(sum(squares.values())), mean_client_norm),
            mean_client_norm=mean_client_norm,
            mean_client_square=tally.square / tally.weight,
            layers={
                module: LayerNorms(min(update_norms[module], client_norm), client_norm)
                for module, client_norm in client_norms.items()
            },
            buffers=self._buffer_mean.finish(tally.weight),
            clients=len(tally.norms),
            rejected=tally.rejected,
            client_norms=(min(tally.norms), statistics.median(tally.norms), max(tally.norms)),
        )

    def _mean_dtype(self, name: str) -> torch.dtype:
        # In float32 at least: a half-precision S would round to nothing beside its model.
        return torch.promote_types(self._global[name].dtype, torch.float32)

    def _form(self) -> list[object]:
        entries = [(name, x.shape, x.dtype) for name, x in self._global.items()]
        return [entries, self._trainable, self._buffer_mean.exponents, self._max_client_norm]

    def _differences(
        self, state: Mapping[str, Tensor]
    ) -> Iterator[tuple[str, int, Tensor, Tensor]]:
        """Yield (parameter, offset in the flat update, piece of ``w_k - w_t``, same in float64).

        The difference is taken in float32 at least. Each piece is overwritten by the next.
        """
        offset = 0
        for name in self._trainable:
            ours = self._global[name].reshape(-1)
            theirs = state[name].detach().to(ours.device).reshape(-1)
            dtype = torch.promote_types(
                torch.promote_types(ours.dtype, theirs.dtype), torch.float32
            )
            length = min(len(ours), CHUNK) if ours.device.type == "cpu" else len(ours)
            scratch = torch.empty(length, dtype=dtype, device=ours.device)
            doubles = torch.empty(length, dtype=torch.float64, device=ours.device)
            for mine, client in zip(pieces(ours), pieces(theirs), strict=True):
                if not len(mine):
                    continue
                # Converted first: "sub" of two halves would round, and overflow, as a half.
                difference = torch.sub(client.to(dtype), mine, out=scratch[: len(mine)])
                yield name, offset, difference, doubles[: len(mine)].copy_(difference)
                offset += len(mine)

    def _measure(self, state: Mapping[str, Tensor]) -> tuple[dict[str, float], float]:
        """Return ``‖Δ‖²`` of every parameter (not finite where ``Δ`` is not) and ``max|Δ|``."""
        names, rows = [], []
        for name, _, difference, doubles in self._differences(state):
            names.append(name)
            extremes = (x.to(torch.float64) for x in difference.aminmax())
            rows.append(torch.stack([chunk_square(doubles), *extremes]))
        squares = dict.fromkeys(self._trainable, 0.0)
        largest = 0.0
        for name, (square, lowest, highest) in zip(
            names, torch.stack(rows).tolist() if rows else [], strict=True
        ):
            peak = max(-lowest, highest)
            # A wider client may be finite where S, in its own dtype, would not be.
            in_range = peak <= torch.finfo(self._mean_dtype(name)).max
            squares[name] += square if in_range else math.inf
            largest = max(largest, peak)
        return squares, largest

    def _update_chunks(
        self, state: Mapping[str, Tensor], shrink: float
    ) -> Iterator[tuple[int, Tensor]]:
        for _, offset, _, doubles in self._differences(state):
            yield offset, doubles if shrink == 1.0 else doubles.mul_(shrink)
