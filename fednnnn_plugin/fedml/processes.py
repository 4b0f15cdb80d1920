"""The processes that a FedML script starts: their ranks, their logging, and how they end."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import fedml

from fednnnn_plugin.fedml.uncaught import end_all_on_uncaught
from fednnnn_plugin.followers.follower import Follower
from fednnnn_plugin.processes.job import choose_ranks
from fednnnn_plugin.processes.ranks import Ranks
from fednnnn_plugin.quantities import RoundRecord

_log = logging.getLogger(__name__)
# A rank whose file names a method of FedML's own never comes.
_MUST = "run this script, with the same method of fednnnn-plugin as federated_optimizer"


@cache  # making them is a collective call of all processes
def simulation_ranks(backend: str) -> Ranks:
    """Return this process alone, or MPI's, as ``comm_args.backend`` says."""
    ranks = choose_ranks(backend, _MUST)
    if ranks.size > 1:
        end_all_on_uncaught(ranks.abort)
    return ranks


def end_federation_together(args: Any) -> None:
    """End a cross-silo federation over MPI where one of its processes raises.

    FedML's receiving thread would keep that process, and the others would wait for it, for ever.
    """
    comm = getattr(args, "comm", None)
    if getattr(args, "backend", None) == "MPI" and comm is not None and comm.Get_size() > 1:
        end_all_on_uncaught(comm.Abort)


def log_through_fedml() -> None:
    """Give this package's records FedML's handlers, format and file.

    ``fedml.init`` puts a logger of its own in the place of ``logging.root``, which no logger has
    as its parent: warnings would go bare to standard error, the rest nowhere.
    """
    logging.getLogger("fednnnn_plugin").parent = logging.root


@contextmanager
def quiet_fedml() -> Iterator[None]:
    """Give logging and standard output back to Python while a run lasts.

    ``fedml.init`` puts a logger of its own, which writes to the screen, in the place of
    ``logging.root``, and that logger's ``info`` in the place of ``sys.stdout.write``. With the real
    root back, what FedML logs reaches the handlers of the real root, of which the run's log file is
    one, and what we print is printed.
    """
    replaced, logging.root = logging.root, logging.Logger.manager.root
    write = vars(sys.stdout).pop("write", None)
    silence = logging.NullHandler()  # without any handler logging.info() would add one that prints
    logging.root.addHandler(silence)
    try:
        yield
    finally:
        logging.root.removeHandler(silence)
        logging.root = replaced
        if write is not None:
            vars(sys.stdout)["write"] = write


class Mlops(Follower):
    """Sends a round's scalars to ``fedml.mlops.log``, for ``using_mlops: true``, until it fails.

    FedML 0.9.6 raises while it holds a lock of its own: a second call would wait for ever.
    """

    _working = True

    def round_done(self, record: RoundRecord) -> None:
        """Send them; a service that is down must not end the run."""
        if not self._working:
            return
        try:
            fedml.mlops.log({**record.tagged(), "round": record.round})
        except Exception as error:
            self._working = False
            _log.warning(
                "round %d: fedml.mlops.log failed, and gets no more of this run: %s",
                record.round,
                error,
            )
