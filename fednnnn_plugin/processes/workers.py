"""What computes a round's parts side by side in one process: its threads."""

import threading
import traceback
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from queue import Empty, SimpleQueue
from typing import Any

import torch

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.user_code import exception_text

_CPU = torch.device("cpu")

#: Is called before each step of a training; it raises where the round is being abandoned.
Step = Callable[[], None]
#: A part of the work; its result may be memory of the worker's.
Call = Callable[[Step], Any]


class Failure(RuntimeError):
    """What a call raised, on one line with the file and line that raised it; its cause is that."""

    @classmethod
    def of(cls, error: BaseException) -> Exception:
        """Return what stands for an error; one that is a line already is left as it is."""
        if isinstance(error, UserError):
            return error
        failure = cls(exception_text(error))
        failure.__cause__ = error
        return failure

    def forget_locals(self) -> None:
        """Let go of what the frames of the failed call hold, such as activations.

        They are in a circle: this, its cause, the traceback, the frame that has this. The collector
        of circles may come after the memory is needed. The text of the traceback stays.
        """
        left: list[BaseException | None] = [self]
        seen = set[int]()
        while left:
            if (error := left.pop()) and id(error) not in seen:
                seen.add(id(error))
                traceback.clear_frames(error.__traceback__)
                left += [error.__cause__, error.__context__]


class Workers(AbstractContextManager["Workers"]):
    """Compute calls side by side, each on one core.

    The bits of a result depend neither on how many workers there are nor on what they did before.
    """

    kind: str  # in the log
    count: int
    why: str  # clients of code that is not ours train one after another here; empty elsewhere

    def __exit__(self, *_: object) -> None:
        """Return when no call is computed any more."""

    @abstractmethod
    def each(self, calls: Iterable[Call]) -> Generator[tuple[int, Any], None, None]:
        """Yield the place of each call and its result, in the order in which they end.

        What a call raises is its result: a ``UserError``, or a `Failure`. A result is valid until
        the next one is asked for. Closing this stops the calls that are left, without waiting.
        """


class _Stopped(Exception):
    """The rest of the calls is being abandoned."""


def _begin_thread(device: torch.device) -> None:
    torch.set_num_threads(1)
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # what a user's ``.cuda()`` means there


class Threads(Workers):
    """Threads of this process, for calls that share nothing global."""

    kind = "threads"

    def __init__(self, count: int = 1, why: str = "", device: torch.device = _CPU) -> None:
        self.count, self.why = count, why
        # One pool each: a worker keeps its result until it gets its next call.
        self._pools = [
            ThreadPoolExecutor(1, "client", _begin_thread, (device,)) for _ in range(count)
        ]

    def __exit__(self, *_: object) -> None:
        for pool in self._pools:
            pool.shutdown(cancel_futures=True)
        # A worker's set_num_threads is also what threads started later begin with.
        torch.set_num_threads(torch.get_num_threads())

    def each(self, calls: Iterable[Call]) -> Generator[tuple[int, Any], None, None]:
        """See :class:`Workers`."""
        stopping = threading.Event()

        def go_on() -> None:
            if stopping.is_set():
                raise _Stopped

        # Not futures: a signal that is raised as one's lock is taken leaves it taken for ever.
        ended = SimpleQueue[tuple[int, ThreadPoolExecutor, Any]]()

        def compute(place: int, pool: ThreadPoolExecutor, call: Call) -> None:
            try:
                go_on()
                found = call(go_on)
            except (Exception, SystemExit) as error:
                found = Failure.of(error)
            except BaseException as error:  # it is raised where results are awaited
                found = error
            ended.put((place, pool, found))

        left, free = enumerate(calls), self._pools[:]
        try:
            while True:
                while free and (following := next(left, None)):
                    place, call = following
                    pool = free.pop(0)
                    pool.submit(compute, place, pool, call)
                if len(free) == self.count:
                    return
                try:  # a signal that arrives as a wait begins is raised when it ends
                    place, pool, found = ended.get(timeout=1.0)
                except Empty:
                    continue
                if isinstance(found, BaseException) and not isinstance(found, Exception):
                    raise found
                yield place, found
                free.append(pool)
        finally:
            stopping.set()


def all_of(workers: Workers, calls: Sequence[Call]) -> list[Any]:
    """Return the results of all calls, in their order; what one of them raised is raised."""
    results: dict[int, Any] = {}
    with closing(workers.each(calls)) as ended:
        for place, result in ended:
            if isinstance(result, Exception):
                raise result
            results[place] = result
    return [results[place] for place in range(len(calls))]
