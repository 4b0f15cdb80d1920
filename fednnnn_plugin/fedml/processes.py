"""The processes of a simulation that a FedML script starts."""

import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from fednnnn_plugin.engine.launch import choose_ranks
from fednnnn_plugin.engine.ranks import Ranks
from fednnnn_plugin.errors import RunError, UserError
from fednnnn_plugin.recipe import Recipe

# Most mistakes are seen by all ranks at once: rank 0 then reports first, and ends the others.
_HEAD_START = 1.0


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
    return choose_ranks(backend)


@contextmanager
def ending_together(ranks: Ranks) -> Iterator[None]:
    """End all ranks where this one raises: they would wait for it for ever, also in its exit."""
    try:
        yield
    except BaseException as error:
        if ranks.size > 1:
            time.sleep(_HEAD_START if ranks.rank else 0.0)
            if isinstance(error, UserError | RunError):
                sys.stderr.write(f"{error}\n")
            else:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            ranks.abort(2 if isinstance(error, UserError) else 1)
        raise
