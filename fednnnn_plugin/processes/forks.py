"""Processes for code that is not ours: forks of this process for each part of a round.

A user's model and data may draw from the global generators and change what is global, which threads
share. A fork has a copy of all that this process holds, a notebook's classes and the data included:
nothing is sent to it, memory is copied where it is written to, and what it changes ends with it.
"""

import logging
import multiprocessing
import os
import pickle
import warnings
from collections.abc import Generator, Iterable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fednnnn_plugin.errors import printable, reason
from fednnnn_plugin.processes.endings import stops_held
from fednnnn_plugin.processes.fork import Fork, shared
from fednnnn_plugin.processes.fork_messages import ForkWarning, Result, Slot
from fednnnn_plugin.processes.workers import Call, Workers

# Seconds that a fork has to end by itself when it has given its result; threads of the user's may
# keep it from that.
_ENDS_WITHIN = 5.0


class Forks(Workers):
    """Forks, ``count`` at a time; see :class:`~fednnnn_plugin.processes.workers.Workers`.

    A fork computes one call after another of an `each`; ``anew``, one only. A model that a call
    returns is of the form of ``like``, and comes as a group of one in memory that both processes
    have. What a fork logs, and each warning once, is this process's. A fork ends with its
    parent, however that ends, and leaves signals to it; none outlasts its `each`.
    """

    kind, why = "processes", ""

    def __init__(self, count: int, like: Slot, *, anew: bool = False) -> None:
        self.count, self._anew = count, anew
        self._slots = [like.map(shared) for _ in range(count)]
        self._warned = set[ForkWarning]()

    def each(self, calls: Iterable[Call]) -> Generator[tuple[int, Any], None, None]:
        """See :class:`~fednnnn_plugin.processes.workers.Workers`."""
        known = list(calls)
        left = iter(range(len(known)))
        busy: dict[Connection, Fork] = {}

        def begin(place: int, slot: Slot) -> None:
            fork = Fork(place, slot)
            with stops_held():  # what ends it must know of it
                busy[fork.start(known, busy)] = fork

        try:
            for slot, place in zip(self._slots, left, strict=False):
                begin(place, slot)
            while busy:
                ready = wait([*busy], timeout=1.0)  # as Threads does
                # All that are silent are looked after, also while others send log records.
                for pipe in [p for p, fork in busy.items() if p in ready or fork.has_ended()]:
                    fork, message = busy[pipe], busy[pipe].heard(pipe)
                    if not isinstance(message, Result):
                        self._pass_on(message)
                        continue
                    yield fork.place, message.value(fork.slot)
                    following = next(left, None)
                    if following is not None and not self._anew and not message.is_last:
                        fork.place = following
                        with suppress(ConnectionError):  # it has died: so it will be heard
                            pipe.send(following)
                        continue
                    fork.end(pipe, _ENDS_WITHIN)
                    del busy[pipe]
                    if following is not None:
                        begin(following, fork.slot)
        finally:
            for pipe, fork in busy.items():
                fork.end(pipe, 0)

    def _pass_on(self, message: ForkWarning | dict[str, Any]) -> None:
        """Do with a log record or a warning of a fork what is done with this process's own."""
        if isinstance(message, dict):
            record = logging.makeLogRecord(message)
            logging.getLogger(record.name).callHandlers(record)
        elif message not in self._warned:
            self._warned.add(message)
            warnings.showwarning(*message)


def why_not_forked(things: object) -> str:
    """Say why a user's things cannot be used by forked processes; empty where they can.

    An open file, a connection, a lock is one for all processes that have it, and no pickle takes
    it. So this is what would not be pickled; tensors, arrays and code are passed over.
    """
    if multiprocessing.current_process().daemon:
        return "this process is a daemon, which starts no others"
    try:
        with Path(os.devnull).open("wb") as nowhere:
            _Looking(nowhere).dump(things)
    except Exception as error:
        return printable(f"{type(error).__name__}: {reason(error)}")
    return ""


class _Looking(pickle.Pickler):
    def persistent_id(self, thing: object) -> str | None:
        """Name what is not looked into."""
        passed_over = (Tensor, torch.Generator, np.ndarray, type, FunctionType, ModuleType)
        return "one" if isinstance(thing, passed_over) else None
