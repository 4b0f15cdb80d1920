"""What a client method sends, keeps and gets back, on the ranks of a run."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fednnnn_plugin.client.group_sgd import Group
from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.client.method import ClientMethod, LocalUpdate, Vectors
from fednnnn_plugin.errors import RunError, UserError, printable
from fednnnn_plugin.processes.ranks import Ranks
from fednnnn_plugin.run_folder.client_files import ClientFiles, Place
from fednnnn_plugin.seeds import isolated_generators
from fednnnn_plugin.server.layout import ModelState
from fednnnn_plugin.user_code import exception_text, on_threads

_SENT, _KEPT = "..sent.", "..kept"  # in a checkpoint


@dataclass(frozen=True)
class MethodState:
    """What a client method has between two rounds: what is sent, and where clients' vectors are."""

    sent: Vectors = field(default_factory=dict)
    kept: Mapping[int, Place] = field(default_factory=dict)  # by client

    def state_dict(self) -> dict[str, Tensor]:
        """Return what a checkpoint holds of it; the clients' vectors are in their files."""
        named = {f"{_SENT}{name}": vector for name, vector in self.sent.items()}
        if self.kept:
            rows = [(client, *place) for client, place in sorted(self.kept.items())]
            named[_KEPT] = torch.tensor(rows, dtype=torch.int64)
        return named

    def on(self, device: torch.device) -> "MethodState":
        """Return it with what is sent on a device."""
        return replace(self, sent={name: x.to(device) for name, x in self.sent.items()})

    @classmethod
    def taken_from(cls, named: dict[str, Tensor]) -> "MethodState":
        """Take what :meth:`state_dict` gave out of a checkpoint's tensors."""
        names = [name for name in named if name.startswith(_SENT)]
        sent = {name.removeprefix(_SENT): named.pop(name) for name in names}
        rows: list[list[int]] = named.pop(_KEPT, torch.empty(0, 3)).tolist()
        return cls(sent, {client: Place(*place) for client, *place in rows})


NO_STATE = MethodState()


class ClientVectors:
    """Carries a method's vectors through the rounds; rank 0 has the files.

    Of the clients that other ranks train in a round, rank 0 sends the vectors and gets them back.
    """

    def __init__(
        self,
        method: ClientMethod,
        sgd: LocalSGD,
        steps: Sequence[int],
        served: ModelState,
        ranks: Ranks,
        files: ClientFiles,
        seed: int,
    ) -> None:
        self._method, self._sgd, self._ranks, self._files = method, sgd, ranks, files
        self.sync, self.prune = files.sync, files.prune
        self._steps, self._seed, self._like = steps, seed, served.vector
        self._sent = self._zeros(method.sends)
        self._index: Mapping[int, Place] = {}
        self._assignment: Sequence[Sequence[Group]] = ()
        self._handed: dict[int, Vectors] = {}  # what this rank's clients had kept, but on rank 0
        self._new: dict[int, Vectors] = {}  # what they keep now
        self._placed: dict[int, Place] = {}  # where the round's clients have it, on rank 0
        self._number = 0

    @property
    def returns(self) -> tuple[str, ...]:
        """Names of what clients return beside their models."""
        return self._method.returns

    def start(self) -> MethodState:
        """Return the state before round 1."""
        return MethodState(self._zeros(self._method.sends))

    def check(self, named: Mapping[str, Tensor]) -> None:
        """Raise ``OSError`` or ``ValueError`` where a file of a checkpoint is damaged."""
        self._files.check(MethodState.taken_from(dict(named)).kept)

    def try_method(self) -> None:
        """Call the method on zeros: what is wrong with it ends the run before the first round."""
        kept = self._zeros(self._method.keeps, 1)
        try:
            with self._called("try"):
                self._corrected(kept, 1)
                self._finish_client(self._like.new_zeros(1, len(self._like)), self._like, [1], kept)
                self._finish_round(self._zeros(self._method.returns), 1.0)
        except RunError as error:
            raise UserError(f"train_args.{error}") from error.__cause__

    def begin(self, number: int, state: MethodState, assignment: Sequence[Sequence[Group]]) -> None:
        """Have what a round's clients need, on every rank."""
        self._number, self._assignment = number, assignment if self._method.keeps else ()
        self._handed, self._new, self._placed = {}, {}, {}
        rank = self._ranks.rank
        if rank == 0:
            self._sent, self._index = dict(state.sent), state.kept
        self._ranks.broadcast([*self._sent.values()])
        for clients in _side_by_side(self._assignment):
            others = [] if rank else [None, *map(self._read, clients[1:])]
            client, own = clients[rank], self._ranks.scatter(others)
            if client is not None and own is not None:
                self._handed[client] = own

    def correction(self, group: Group) -> Tensor | None:
        """Return what is added to the gradients of a group, ``[m, d]``.

        The generators are those of its clients: workers may compute corrections side by side.
        """
        kept = self._kept_of(group)
        try:
            with self._errors(), torch.no_grad():
                return self._corrected(kept, len(group))
        except RunError as error:
            if isinstance(error.__cause__, torch.cuda.OutOfMemoryError):
                raise error.__cause__ from None  # of a group that is to be narrower
            raise

    def finish(
        self, group: Group, served: ModelState, trained: ModelState
    ) -> tuple[Vectors, Vectors]:
        """Return what a group's clients keep, if they are accepted, and return: ``[m, d]``."""
        update = trained.vector - served.vector
        steps = [self._steps[client] for client in group]
        kept = self._kept_of(group)
        with self._called("finish", group[0]):
            return self._finish_client(update, served.vector, steps, kept)

    def keep(self, group: Group, accepted: Sequence[bool], kept: Vectors) -> None:
        """Keep the vectors of the clients of a group that were accepted."""
        for row, client in enumerate(group):
            if self._method.keeps and accepted[row]:
                own = {name: matrix[row].cpu().clone() for name, matrix in kept.items()}
                if self._ranks.rank == 0:
                    self._placed[client] = self._files.write(client, self._number, own)
                else:
                    self._new[client] = own

    def collect(self) -> None:
        """Bring what the ranks' clients keep to rank 0."""
        for clients in _side_by_side(self._assignment):
            own = clients[self._ranks.rank]
            new = None if own is None else self._new.get(own)
            for client, kept in zip(clients, self._ranks.gather(new), strict=False):
                if client is not None and kept:
                    self._placed[client] = self._files.write(client, self._number, kept)

    def finish_round(self, state: MethodState, returned: Vectors, clients: int) -> MethodState:
        """Return the state after a round, of so many clients, on rank 0."""
        with self._called("round"):
            sent = self._finish_round(returned, clients / len(self._steps))
        return MethodState(sent, {**state.kept, **self._placed})

    def _zeros(self, names: Sequence[str], *rows: int) -> dict[str, Tensor]:
        return {name: self._like.new_zeros(*rows, len(self._like)) for name in names}

    def _read(self, client: int | None) -> Vectors | None:
        place = None if client is None else self._index.get(client)
        if client is None or place is None:
            return None
        return self._files.read(client, place)

    def _kept_of(self, group: Group) -> Vectors:
        found = [self._handed.get(client) or self._read(client) for client in group]
        zeros = self._zeros(self._method.keeps)
        return {
            name: torch.stack([(own or zeros)[name].to(self._like) for own in found])
            for name in self._method.keeps
        }

    def _corrected(self, kept: Vectors, clients: int) -> Tensor | None:
        found = self._method.correction(self._sent, kept)
        if found is None:
            return None
        return self._checked("correction", {"h": found}, ["h"], clients)["h"]

    def _finish_client(
        self, update: Tensor, served: Tensor, steps: Sequence[int], kept: Vectors
    ) -> tuple[Vectors, Vectors]:
        taken = update.new_tensor(steps).unsqueeze(1)
        rate = self._sgd.in_round(max(self._number, 1)).learning_rate
        local = LocalUpdate(update, served, taken.clamp(min=1), rate, self._sent, kept)
        after, returned = self._method.finish_client(local)
        after = self._checked("finish_client, kept", after, self._method.keeps, len(steps))
        names = self._method.returns
        returned = self._checked("finish_client, returned", returned, names, len(steps))
        # A client without a batch has learnt nothing.
        return (
            {name: torch.where(taken > 0, new, kept[name]) for name, new in after.items()},
            {name: torch.where(taken > 0, new, 0.0) for name, new in returned.items()},
        )

    def _finish_round(self, returned: Vectors, share: float) -> Vectors:
        found = self._method.finish_round(self._sent, returned, share)
        return self._checked("finish_round", found, self._method.sends)

    def _checked(
        self, what: str, given: Vectors, names: Sequence[str], *rows: int
    ) -> dict[str, Tensor]:
        """Return what a method gave, if it is what it says that it gives, in the model's dtype."""
        shape = (*rows, len(self._like))
        if {*given} != {*names}:
            raise UserError(f"{what}: gives {printable(sorted(given))}: must be {sorted(names)}")
        for name, vector in given.items():
            if not isinstance(vector, Tensor) or vector.shape != shape:
                own = list(vector.shape) if isinstance(vector, Tensor) else type(vector).__name__
                raise UserError(f"{what}: {name}: {printable(own)}: must be {list(shape)}")
        return {name: given[name].detach().to(self._like) for name in names}

    @contextmanager
    def _called(self, purpose: str, client: int = 0) -> Iterator[None]:
        """Call the method, which may draw, on one thread."""
        with (
            self._errors(),
            on_threads(1),
            torch.no_grad(),
            isolated_generators(self._seed, f"method {purpose}", self._number, client),
        ):
            yield

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Say on one line what the method raises: its own error, not that of a client."""
        try:
            yield
        except (Exception, SystemExit) as error:
            said = str(error) if isinstance(error, UserError) else f"raised {exception_text(error)}"
            when = f"round {self._number}: " if self._number else ""
            raise RunError(f"{when}client_method: {said}") from error


def _side_by_side(assignment: Sequence[Sequence[Group]]) -> Iterator[list[int | None]]:
    """Yield the first client of each rank, the second of each, and so on; None where it ends."""
    of_ranks = [[client for group in groups for client in group] for groups in assignment]
    for place in range(max(map(len, of_ranks), default=0)):
        yield [of[place] if place < len(of) else None for of in of_ranks]
