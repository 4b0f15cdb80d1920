"""Adding the groups of a round to its sum, each while a GPU trains the next one."""

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from fednnnn_plugin.client.group_sgd import Group
from fednnnn_plugin.errors import RunError
from fednnnn_plugin.followers.follower import Follower
from fednnnn_plugin.processes.devices import is_asynchronous, is_out_of_memory
from fednnnn_plugin.processes.workers import Failure
from fednnnn_plugin.rounds.client_vectors import ClientVectors
from fednnnn_plugin.rounds.clock import Clock
from fednnnn_plugin.rounds.groups import GroupTooWide
from fednnnn_plugin.rounds.method_calls import Uploaded
from fednnnn_plugin.rounds.schedule import Schedule
from fednnnn_plugin.server.average import ClientSum, MeasuredGroup
from fednnnn_plugin.server.layout import ModelState

T = TypeVar("T")
_log = logging.getLogger(__name__)
_PLACE = re.compile(r" \([^()]*, line \d+\)$")  # of a user's code, as the log names it


@dataclass(eq=False, repr=False)
class GroupAdder:
    """Adds a round's groups to the sum of this rank, in the order in which their training ends.

    A group's update is measured at once, and added when the next group's steps are launched: a GPU
    computes those while the host waits for what was measured, and adds it. The order is the same. A
    CPU computes nothing meanwhile: there each is added at once, and takes no memory any more.
    """

    number: int
    served: ModelState
    total: ClientSum
    clock: Clock
    schedule: Schedule
    vectors: ClientVectors
    followers: Sequence[Follower]
    clients: int  # of this rank
    _done: int = field(default=0, init=False)
    _left: Callable[[], None] | None = field(default=None, init=False)  # adds what is measured

    def add(self, group: Group, trained: ModelState | Exception) -> None:
        """Measure what a group trained, or count it as failed; add the group before.

        Raises:
            GroupTooWide: the memory of a GPU ended at a group of several.
            RunError: more clients failed than may.
        """
        self.clock.mark("train")
        self._add_left()
        if isinstance(trained, Exception):
            if isinstance(trained.__cause__, RunError):  # what it had kept is lost: not its failure
                raise trained.__cause__
            self._count_failures(group, trained)
            self._progress(group)
        else:
            measured = _within_memory(group, partial(self._measure, group, trained))
            self._left = partial(self._add, group, *measured)
            if not is_asynchronous(self.total.device):
                self._add_left()
        self.clock.mark("aggregate")

    def finish(self) -> None:
        """Add the last group; see :meth:`add`."""
        self.clock.mark("train")
        self._add_left()
        self.clock.mark("aggregate")

    def _measure(self, group: Group, trained: ModelState) -> tuple[Uploaded, MeasuredGroup]:
        weights = [self.schedule.weight(client) for client in group]
        sent = self.vectors.finish(group, trained.vector - self.served.vector, weights)
        changed = ModelState(sent.update, trained.buffers)
        return sent, self.total.measure(changed, sent.returned)

    def _add_left(self) -> None:
        left, self._left = self._left, None
        if left:
            left()

    def _add(self, group: Group, sent: Uploaded, measured: MeasuredGroup) -> None:
        names = [f"round {self.number}: client {client}" for client in group]
        add = partial(self.total.add_measured, measured, sent.weights, names, group)
        added = _within_memory(group, add)
        self.vectors.keep(group, added, sent.kept)
        self._progress(group)

    def _progress(self, group: Group) -> None:
        self._done += len(group)
        for follower in self.followers:
            follower.client_done(self.number, self._done, self.clients)

    def _count_failures(self, group: Group, error: Exception) -> None:
        """Count a group's clients as failed; raise where those are too many."""
        said = " ".join(str(error).split())
        why = _PLACE.sub("", said)  # a record is alike on all machines, and has no path of one
        for client in group:
            self.total.fail(client, why)
            _log.warning("round %d: client %d failed: %s", self.number, client, said)
        reason = f"client {group[0]} failed ({said}): "
        refuse_failures(self.schedule, self.number, self.total.seen.failed, reason, error)


def refuse_failures(
    schedule: Schedule,
    number: int,
    failed: int,
    reason: str = "",
    cause: Exception | None = None,
) -> None:
    """Raise where more clients of a round failed than may."""
    if failed > schedule.max_client_failures:
        raise RunError(
            f"round {number}: {reason}{failed} of its clients failed; "
            f"train_args.max_client_failures allows {schedule.max_client_failures}"
        ) from cause_of(cause)


def cause_of(error: BaseException | None) -> BaseException | None:
    """Return the user's exception, of which a one-line error was made."""
    return error.__cause__ if isinstance(error, Failure) and error.__cause__ else error


def _within_memory(group: Group, compute: Callable[[], T]) -> T:
    """Return what is computed of a group; where a GPU's memory ends at several, it is too wide."""
    try:
        return compute()
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        why = " ".join(str(error).split())
        if len(group) == 1:
            raise RunError(
                f"client {group[0]}: its update has no room on the GPU: {why}"
            ) from error
    raise GroupTooWide(why)  # not within the clause: what the frames of the error hold is let go
