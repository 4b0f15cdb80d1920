"""The processes of a simulation that a FedML script starts."""

import sys
from functools import cache
from types import TracebackType

from fednnnn_plugin.engine.endings import ending
from fednnnn_plugin.engine.mpi import choose_ranks
from fednnnn_plugin.engine.ranks import Ranks
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.recipe import Recipe


def simulation_ranks(recipe: Recipe) -> Ranks:
    """Return this process alone, or MPI's, as ``comm_args.backend`` says.

    Raises:
        UserError: a backend of FedML's that our methods do not run on; ``sp`` under ``mpirun``.
    """
    backend = recipe.comm_args.backend
    if backend not in ("sp", "MPI"):
        raise UserError(f"comm_args.backend: {backend!r}: a simulation of ours runs on sp or MPI")
    return _ranks(backend)


@cache  # making them is a collective call of all processes
def _ranks(backend: str) -> Ranks:
    ranks = choose_ranks(backend)
    if ranks.size > 1:
        _end_all_on_uncaught(ranks)
    return ranks


def _end_all_on_uncaught(ranks: Ranks) -> None:
    """End all ranks where the script itself raises in one: the others would wait for it."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        sys.stdout.flush()
        sys.stderr.flush()
        ranks.abort(ending(error)[1])

    sys.excepthook = hook
