"""What a client method sends, keeps and gets back, on the ranks of a run."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import chain, zip_longest

import torch
from torch import Tensor

from fednnnn_plugin.client.correction import Correction
from fednnnn_plugin.client.group_sgd import Group
from fednnnn_plugin.client.method import Vectors, has_vectors, replaces
from fednnnn_plugin.processes.ranks import Ranks
from fednnnn_plugin.rounds.method_calls import MethodCalls, Uploaded
from fednnnn_plugin.run_folder.client_files import ClientFiles
from fednnnn_plugin.server.layout import ModelState
from fednnnn_plugin.server.transfer import to_device, to_host
from fednnnn_plugin.server.update import Measured

_SENT, _KEPT = "..sent.", "..kept"  # in a checkpoint


@dataclass(frozen=True)
class MethodState:
    """What a client method has between two rounds: what is sent, and when clients kept vectors."""

    sent: Vectors = field(default_factory=dict)
    kept: Mapping[int, int] = field(default_factory=dict)  # by client the round

    def state_dict(self) -> dict[str, Tensor]:
        """Return what a checkpoint holds of it; the clients' vectors are in their files."""
        named = {f"{_SENT}{name}": vector for name, vector in self.sent.items()}
        if self.kept:
            named[_KEPT] = torch.tensor(sorted(self.kept.items()), dtype=torch.int64)
        return named

    @classmethod
    def taken_from(cls, named: dict[str, Tensor], device: torch.device) -> "MethodState":
        """Take what :meth:`state_dict` gave out of a checkpoint's tensors; send from a device."""
        names = [name for name in named if name.startswith(_SENT)]
        sent = {name.removeprefix(_SENT): named.pop(name).to(device) for name in names}
        rows: list[tuple[int, int]] = named.pop(_KEPT, torch.empty(0, 2)).tolist()
        return cls(sent, dict(rows))


@dataclass(eq=False, repr=False)
class ClientVectors:
    """Carries a method's vectors through the rounds; rank 0 has the files.

    Of the clients that other ranks train in a round, rank 0 sends the vectors and gets them back.
    It reads what its own clients kept when they train, or with ``read_ahead`` before the round's
    training: processes that are forked for it then have what this one has.
    """

    calls: MethodCalls
    steps: Sequence[int]  # of each client in a round
    ranks: Ranks
    files: ClientFiles
    _: KW_ONLY
    read_ahead: bool

    def __post_init__(self) -> None:
        self._method = self.calls.method
        self._is_plain = not has_vectors(self._method)
        self._index: Mapping[int, int] = {}
        self._assignment: Sequence[Sequence[Group]] = ()
        self._handed: dict[int, Vectors] = {}  # what clients had kept that train here
        self._held: dict[Group, Vectors] = {}  # what groups had kept that train now
        self._new: dict[int, Vectors] = {}  # what they keep now
        self._placed: set[int] = set()  # who has it in a file of the round, on rank 0

    @property
    def returns(self) -> dict[str, int]:
        """The lengths, by names, of what clients return beside their models."""
        return {name: self.calls.length(name) for name in self._method.returns}

    @property
    def measured(self) -> Measured:
        """What the norms of a round are of."""
        return "upload" if replaces(self._method, "upload") else "update"

    def start(self) -> MethodState:
        """Return the state before round 1."""
        return MethodState(self.calls.zeros(self._method.sends))

    def check(self, named: Mapping[str, Tensor]) -> None:
        """Raise ``OSError`` or ``ValueError`` where a file of a checkpoint is damaged."""
        self.files.check(MethodState.taken_from(dict(named), torch.device("cpu")).kept)

    def begin(
        self,
        number: int,
        state: MethodState,
        assignment: Sequence[Sequence[Group]],
        served: ModelState,
        weights: Mapping[int, float],
    ) -> None:
        """Have what a round's clients need, on every rank; ``weights`` are their ``a_k``."""
        self._assignment = assignment if self._method.keeps else ()
        self.files.remove(self._placed, number)  # by an earlier try, whose groups were too wide
        self._handed, self._held, self._new, self._placed = {}, {}, {}, set()
        calls, rank = self.calls, self.ranks.rank
        calls.number, calls.served = number, served.vector
        taken = (weight * self.steps[client] for client, weight in weights.items())
        calls.mean_steps = math.fsum(taken) / math.fsum(weights.values())
        if rank == 0:
            # In the order of all ranks: a checkpoint has the names in another one. Copies, as a
            # method may change them in place.
            calls.sent = {name: state.sent[name].clone() for name in calls.sent}
            self._index = state.kept
        self.ranks.broadcast([*calls.sent.values()])
        for clients in _side_by_side(self._assignment):
            first = clients[0] if self.read_ahead else None
            parts = [] if rank else [*map(self._read, [first, *clients[1:]])]
            client, own = clients[rank], self.ranks.scatter(parts)
            if client is not None and own is not None:
                self._handed[client] = own

    def correction(self, group: Group) -> Correction | None:
        """Return what the method changes in a group's steps; what they had kept is held."""
        if not (replaces(self._method, "correction") or replaces(self._method, "gradient")):
            return None
        kept = self._held[group] = self._kept_of(group)
        return self.calls.correction(kept, len(group))

    def finish(self, group: Group, update: Tensor, weights: Sequence[float]) -> Uploaded:
        """Return what a group's clients upload, return and, if they are accepted, keep."""
        if self._is_plain:
            return Uploaded(update, weights, {}, {})
        steps = [self.steps[client] for client in group]
        kept = self._held.pop(group, None) or self._kept_of(group)
        for client in group:
            self._handed.pop(client, None)
        sent = self.calls.upload(group[0], update, steps, weights, kept)
        return sent._replace(kept={name: to_host(matrix) for name, matrix in sent.kept.items()})

    def keep(self, group: Group, accepted: Sequence[bool], kept: Vectors) -> None:
        """Keep the vectors of the clients of a group that were accepted; they are on the CPU."""
        for row, client in enumerate(group):
            if self._method.keeps and accepted[row]:
                own = {name: matrix[row].clone() for name, matrix in kept.items()}
                if self.ranks.rank == 0:
                    self._write(client, own)
                else:
                    self._new[client] = own

    def collect(self) -> None:
        """Bring what the ranks' clients keep to rank 0."""
        for clients in _side_by_side(self._assignment):
            own = clients[self.ranks.rank]
            new = None if own is None else self._new.get(own)
            for client, kept in zip(clients, self.ranks.gather(new), strict=False):
                if client is not None and kept:
                    self._write(client, kept)

    def finish_round(self, state: MethodState, returned: Vectors, clients: int) -> MethodState:
        """Return the state after a round, of so many clients, on rank 0."""
        if self._is_plain:
            return state
        sent = self.calls.finish_round(returned, clients / len(self.steps))
        placed, self._placed = self._placed, set()
        return MethodState(sent, {**state.kept, **dict.fromkeys(placed, self.calls.number)})

    def _write(self, client: int, vectors: Vectors) -> None:
        self.files.write(client, self.calls.number, vectors)
        self._placed.add(client)

    def _read(self, client: int | None) -> Vectors | None:
        if client is None or client not in self._index:
            return None
        return self.files.read(client, self._index[client])

    def _kept_of(self, group: Group) -> Vectors:
        found = [self._handed.get(client) or self._read(client) for client in group]
        calls, served = self.calls, self.calls.served
        matrices = {}
        for name in self._method.keeps:
            rows = torch.zeros(len(group), calls.length(name), dtype=served.dtype)
            for row, own in zip(rows, found, strict=True):
                if own is not None:
                    row.copy_(own[name])
            matrices[name] = to_device(rows, served.device)
        return matrices


def _side_by_side(assignment: Sequence[Sequence[Group]]) -> Iterator[tuple[int | None, ...]]:
    """Yield the first client of each rank, the second of each, and so on; None where it ends."""
    return zip_longest(*map(chain.from_iterable, assignment))
