"""Whether clients of a method can train side by side: tried, as it is for a model."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import torch
from torch import Tensor

from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.client.method import ClientMethod, Vectors, has_vectors
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.processes.devices import is_out_of_memory
from fednnnn_plugin.rounds.method_calls import MethodCalls
from fednnnn_plugin.seeds import generators_state, isolated_generators
from fednnnn_plugin.user_code import on_threads

_SAME = 1e-3  # of a length: another order of additions makes less


def why_not_in_groups(method: ClientMethod, sgd: LocalSGD, served: Tensor) -> str:
    """Say why clients of a method cannot train side by side; nothing where they can.

    Two clients have random numbers, other steps and other weights: each must get what it gets
    alone. What a method draws is not the same in a group: where it draws, nothing is compared; nor
    where it takes no such numbers, or where a GPU has no memory for two. ``served`` is ``w_t``.
    """
    try:
        return _why_not(method, sgd, served) if has_vectors(method) else ""
    except RuntimeError as error:
        if is_out_of_memory(error):  # of the numbers, not in the method
            return ""
        raise


def _why_not(method: ClientMethod, sgd: LocalSGD, served: Tensor) -> str:
    calls, same = _NotingDraws(method, sgd, 0, served), True
    with suppress(UserError):  # of one client, which the run says
        calls.call_all(1)
        try:
            calls.call_all(2)
        except UserError as error:
            return "" if is_out_of_memory(error.__cause__) else str(error)
        calls.drew = False
        with on_threads(1), isolated_generators(0, "method rows"):
            calls.sent = {name: torch.rand_like(vector) for name, vector in calls.sent.items()}
            size = served.new_tensor([[1.0], [3.0]])  # else both have about one mean and norm
            zeros = calls.zeros(method.keeps, 2).items()
            kept = {name: torch.rand_like(matrix) * size for name, matrix in zeros}
            update = torch.rand_like(served.expand(2, -1)) * size

            def results(*clients: int, seed: int = 0) -> list[Tensor]:
                rows = slice(clients[0], clients[-1] + 1)
                own = {name: matrix[rows] for name, matrix in kept.items()}
                return calls.results(clients, update[rows], own, seed)

            together, alone = results(0, 1), zip(results(0), results(1), strict=True)
            same = all(map(_alike, together, map(torch.cat, alone)))
            # A generator of its own is not among the global ones.
            calls.drew |= not all(map(_alike, together, results(0, 1, seed=1)))
    if same or calls.drew:
        return ""
    return (
        "client_method: a client in a group gets another result than alone: each row of [m, d] is "
        "to be computed of that row, as by norm(dim=1)"
    )


class _NotingDraws(MethodCalls):
    """Notes whether the method draws from the global generators."""

    drew = False

    def results(
        self, clients: Sequence[int], update: Tensor, kept: Vectors, seed: int
    ) -> list[Tensor]:
        """Return all that the method gives for some of two clients, with what they have."""
        found, made = list[Tensor](), [1 + 2 * client for client in clients]
        with isolated_generators(seed, "method rows"), self._noting():
            correction = self.correction(kept, len(clients))
            if correction and correction.added is not None:
                found.append(correction.added)
            if correction and correction.gradient:
                number = torch.tensor(made, device=update.device).unsqueeze(1)
                found.append(correction.gradient(update, torch.sin, number))
        sent = self.upload(seed, update, made, [*map(float, made)], kept)
        weights = torch.tensor(sent.weights, dtype=torch.float64)
        return [*found, sent.update, weights, *sent.kept.values(), *sent.returned.values()]

    @contextmanager
    def _called(self, purpose: str, client: int = 0) -> Iterator[None]:
        with super()._called(purpose, client), self._noting():
            yield

    @contextmanager
    def _noting(self) -> Iterator[None]:
        before = generators_state()
        yield
        self.drew |= generators_state() != before


def _alike(one: Tensor, other: Tensor) -> bool:
    one, other = (torch.nan_to_num(each, posinf=0.0, neginf=0.0) for each in (one, other))
    return bool(torch.dist(one, other) <= _SAME * torch.linalg.vector_norm(other))
