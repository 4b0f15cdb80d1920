"""The calls of a client method: what it is given, and what it must give."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from fednnnn_plugin.client.correction import Correction
from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.client.method import (
    ClientMethod,
    GradientAt,
    LocalStep,
    LocalUpdate,
    Vectors,
    length,
    replaces,
)
from fednnnn_plugin.errors import RunError, UserError, printable
from fednnnn_plugin.processes.devices import is_out_of_memory
from fednnnn_plugin.seeds import isolated_generators
from fednnnn_plugin.server.transfer import to_device
from fednnnn_plugin.user_code import exception_text, marks_of, on_threads

_METHOD = "train_args.client_method"


class Uploaded(NamedTuple):
    """What m clients contribute: ``Δ'_k``, its weights, and what they keep and return."""

    update: Tensor
    weights: Sequence[float]
    kept: Vectors
    returned: Vectors


class _OfClient(Exception):
    """What computing a gradient raised: a client's error, not the method's."""


@dataclass
class MethodCalls:
    """Calls a method in a round, of which it holds what all clients have.

    ``served`` is ``w_t``, ``[d]``; ``mean_steps`` is ``Σ α_k T_k`` of the round.
    """

    method: ClientMethod
    sgd: LocalSGD
    seed: int
    served: Tensor
    number: int = 0  # 0 is before round 1
    sent: dict[str, Tensor] = field(default_factory=dict)
    mean_steps: float = 1.0

    def __post_init__(self) -> None:
        self.sent = self.zeros(self.method.sends)

    def length(self, name: str) -> int:
        """Return how many numbers a vector of that name has."""
        return length(self.method, [name], len(self.served))

    def zeros(self, names: Sequence[str], *rows: int) -> dict[str, Tensor]:
        """Return vectors of zeros by these names."""
        return {name: self.served.new_zeros(*rows, self.length(name)) for name in names}

    def try_all(self) -> list[str]:
        """Call all on zeros: what is wrong ends the run before the first round.

        Returns a warning for each attribute of the method that they change once more in a second
        round of calls: what the first has computed may stay.
        """
        self.call_all(1)
        own: dict[str, object] = getattr(self.method, "__dict__", {})
        before = marks_of(own)
        self.call_all(1)
        return [
            f"{_METHOD}: self.{printable(name)} is changed in a round: other processes, and a "
            "resumed run, do not have it: keep it in what is kept or sent, and draw from the "
            "global generators"
            for name, mark in marks_of(own).items()
            if before.get(name) != mark
        ]

    def call_all(self, m: int) -> None:
        """Call all on zeros of m clients."""
        kept, nothing = self.zeros(self.method.keeps, m), self.served.new_zeros(m, len(self.served))
        with on_threads(1), isolated_generators(self.seed, "method try"):
            self.correction(kept, m)
            if replaces(self.method, "gradient"):
                number = torch.zeros_like(nothing[:, :1], dtype=torch.int64)
                self._gradient(kept, nothing, torch.zeros_like, number)
            self.upload(0, nothing, [1] * m, [1.0] * m, kept)
            self.finish_round(self.zeros(self.method.returns), 1.0)

    def correction(self, kept: Vectors, clients: int) -> Correction | None:
        """Return what the method changes in the steps of a group.

        The generators are those of its clients: workers may compute corrections side by side.
        """
        with self._errors(of_group=True), torch.no_grad():
            found = self.method.correction(self.sent, kept)
            if isinstance(found, Tensor) and found.shape[:1] == (1,):
                found = found.expand(clients, -1)  # one for all
            added = None if found is None else self._vector("correction", "h", found, clients)
        gradient = partial(self._gradient, kept) if replaces(self.method, "gradient") else None
        return None if added is None and gradient is None else Correction(added, gradient)

    def _gradient(
        self, kept: Vectors, weights: Tensor, gradient_at: GradientAt, number: Tensor
    ) -> Tensor:
        """Return the method's gradient for the first of a group, of which all had ``kept``."""
        method, computed = self.method, 0

        def at(points: Tensor) -> Tensor:
            nonlocal computed
            computed += 1
            if computed > method.evaluations:
                raise UserError("gradient", f"computes more than evaluations, {method.evaluations}")
            _of_shape("gradient_at", "points", points, len(weights), len(self.served))
            try:
                return gradient_at(points)
            except Exception as error:
                raise _OfClient from error

        own = {name: matrix[: len(weights)] for name, matrix in kept.items()}
        step = LocalStep(number, self._rate, self.served, self.sent, own)
        with self._errors(of_group=True), torch.no_grad():
            return self._vector("gradient", "g", method.gradient(weights, at, step), len(weights))

    def upload(
        self,
        client: int,
        update: Tensor,
        steps: Sequence[int],
        weights: Sequence[float],
        kept: Vectors,
    ) -> Uploaded:
        """Return what a group uploads of updates ``[m, d]``, returns and keeps.

        ``client`` is its first.
        """
        method, m = self.method, len(steps)
        taken = self._column(steps, update.dtype)
        local = LocalUpdate(
            update,
            self.served,
            taken.clamp(min=1),
            self.mean_steps,
            self._column(weights, torch.float64),
            self._rate,
            self.sent,
            kept,
            uploaded=update,
        )
        with self._called("finish", client):
            if replaces(method, "upload"):
                given = method.upload(local)
                given, own = given if isinstance(given, tuple) else (given, None)
                local = replace(local, uploaded=self._vector("upload", "Δ'", given, m))
                weights = weights if own is None else _positive(own, m)
            after, returned = method.finish_client(local)
            after = self._vectors("finish_client, kept", after, method.keeps, m)
            returned = self._vectors("finish_client, returned", returned, method.returns, m)
        # A client without a batch has learnt nothing.
        return Uploaded(
            local.uploaded,
            weights,
            {name: torch.where(taken > 0, new, kept[name]) for name, new in after.items()},
            {name: torch.where(taken > 0, new, 0.0) for name, new in returned.items()},
        )

    def finish_round(self, returned: Vectors, share: float) -> dict[str, Tensor]:
        """Return what is sent in the next round."""
        with self._called("round"):
            found = self.method.finish_round(self.sent, returned, share)
            return self._vectors("finish_round", found, self.method.sends)

    def _column(self, of_clients: Sequence[float], dtype: torch.dtype) -> Tensor:
        return to_device(torch.tensor(of_clients, dtype=dtype), self.served.device).unsqueeze(1)

    @property
    def _rate(self) -> float:
        return self.sgd.in_round(max(self.number, 1)).learning_rate

    def _vectors(
        self, what: str, given: Vectors, names: Sequence[str], *rows: int
    ) -> dict[str, Tensor]:
        """Return what a method gave by names, if it is what it says that it gives."""
        if {*given} != {*names}:
            raise UserError(what, f"gives {printable(sorted(given))}", f"must be {sorted(names)}")
        return {name: self._vector(what, name, given[name], *rows) for name in names}

    def _vector(self, what: str, name: str, given: object, *rows: int) -> Tensor:
        """Return a vector that a method gave, if it has its shape, in the model's dtype."""
        return _of_shape(what, name, given, *rows, self.length(name)).detach().to(self.served)

    @contextmanager
    def _called(self, purpose: str, client: int = 0) -> Iterator[None]:
        """Call the method, which may draw, on one thread."""
        with (
            self._errors(of_group=purpose == "finish"),
            on_threads(1),
            torch.no_grad(),
            isolated_generators(self.seed, f"method {purpose}", self.number, client),
        ):
            yield

    @contextmanager
    def _errors(self, *, of_group: bool) -> Iterator[None]:
        """Say on one line what the method raises: its own error, not that of a client."""
        try:
            yield
        except _OfClient as error:
            raise error.__cause__ or error from None
        except (Exception, SystemExit) as error:
            if of_group and self.number and is_out_of_memory(error):
                raise  # it is to be narrower
            said = str(error) if isinstance(error, UserError) else f"raised {exception_text(error)}"
            if not self.number:
                raise UserError(_METHOD, said) from error
            raise RunError(f"round {self.number}: client_method: {said}") from error


def _of_shape(what: str, name: str, given: object, *shape: int) -> Tensor:
    """Return what a method gave, if it is a tensor of this shape."""
    if isinstance(given, Tensor) and given.shape == shape:
        return given
    own = list(given.shape) if isinstance(given, Tensor) else type(given).__name__
    raise UserError(what, f"{name}: {printable(own)}", f"must be {list(shape)}")


def _positive(weights: object, m: int) -> list[float]:
    """Return the weights that a method gave, if they can be."""
    found: list[float] = _of_shape("upload", "weights", weights, m, 1).squeeze(1).tolist()
    if not all(0 < weight < math.inf for weight in found):
        raise UserError("upload", f"weights: {found}", "must be positive and finite")
    return found
