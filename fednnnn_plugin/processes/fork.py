"""A process that was forked for a user's code: what it is told, what it says, and how it ends."""

import ctypes
import gc
import logging
import mmap
import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any, Protocol, TextIO

import torch
from torch import Tensor

from fednnnn_plugin.errors import UserError, logged_message
from fednnnn_plugin.processes.endings import ENDING
from fednnnn_plugin.processes.workers import Call, Failure

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
#: Seconds after which a fork that has said nothing is named, and after which one is ended that has
#: no children and has used no processor time since: it waits for what no thread of it will do.
SILENT_SECONDS, STUCK_SECONDS = 120.0, 600.0
_LONGEST_LOOK = 2.0
_WHY = "custom code in it may wait for a lock that another thread of the program held"
_REMEDY = "device_args.worker_num: 1 trains arrays and tensors in the program itself"
_log = logging.getLogger(__name__)
_context = multiprocessing.get_context("fork")


class Slot(Protocol):
    """A model: tensors that a call may return in memory which it shares with this process."""

    @property
    def tensors(self) -> list[Tensor]:
        """All of them, in a fixed order."""

    def map(self, function: Callable[[Tensor], Tensor]) -> "Slot":
        """Return what a function gives of each."""


@dataclass
class Fork:
    """A process that computes a call, and others when it is told their places."""

    place: int
    slot: Slot

    def start(self, calls: Sequence[Call]) -> Connection:
        """Start it; return the pipe that it is heard and told on."""
        pipe, end = _context.Pipe()
        self.process: ForkProcess = _context.Process(
            target=_compute, args=(calls, self.place, self.slot, end, os.getpid()), name="client"
        )
        self._heard_at, self._is_named, self._stuck = time.monotonic(), False, ""
        self._looked_at, self._used, self._idle = self._heard_at, object(), 0.0
        with _signals_held(), warnings.catch_warnings():  # signals until the fork ignores them
            # Python 3.12 warns of locks that other threads hold: a fork uses none of their work.
            warnings.filterwarnings("ignore", "This process .* is multi-threaded")
            self.process.start()
        end.close()
        return pipe

    def heard(self, pipe: Connection) -> Any:
        """Return what it says; a result also where it has died."""
        self._heard_at, self._is_named = time.monotonic(), False
        try:
            if self.process.exitcode is None or pipe.poll():
                return pipe.recv()
        except (EOFError, ConnectionError):
            self.process.join()
        code = self.process.exitcode or 0
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
        why = self._stuck or f"its process was ended {how}"
        return Result(raised=(why, False, None, ""), is_last=True)

    def has_ended(self) -> bool:
        """Tell whether it has, also where its own children hold the pipe; look after it."""
        silent = time.monotonic() - self._heard_at
        if silent > SILENT_SECONDS and self.process.exitcode is None:
            self._look_after(silent)
        return self.process.exitcode is not None

    def _look_after(self, silent: float) -> None:
        """Name a process that says nothing, and end one that never will."""
        used, now = _processor_use(self.process.pid or 0), time.monotonic()
        # A look counts for no more than this: a job may be suspended as a whole.
        self._idle += min(now - self._looked_at, _LONGEST_LOOK)
        if used is None or used != self._used:
            self._idle = 0.0
        self._looked_at, self._used = now, used
        if not self._is_named:
            self._is_named = True
            _log.warning(
                "process %d, of a client, has said nothing for %.0f s: it may need that long, or "
                "%s; %s",
                *(self.process.pid, silent, _WHY, _REMEDY),
            )
        if self._idle > STUCK_SECONDS:
            self._stuck = f"its process did nothing for {self._idle:.0f} s: {_WHY}; {_REMEDY}"
            self.process.kill()
            self.process.join()

    def end(self, pipe: Connection, within: float) -> None:
        """Tell it to end, and see to that where it has not ``within`` some seconds."""
        with suppress(OSError):
            pipe.send(None)
        deadline = time.monotonic() + within
        # What it has started may keep it from being seen to end.
        while self.process.exitcode is None and (left := deadline - time.monotonic()) > 0:
            self.process.join(min(left, 0.1))
        self.process.kill()
        self.process.join()
        pipe.close()


def _processor_use(process: int) -> object:
    """Return what changes while a process computes: the ticks that it and its threads had.

    None where it has children, who may do its work, or where the system does not tell.
    """
    try:
        folder = Path("/proc", str(process))
        children = [task.read_text() for task in folder.glob("task/*/children")]
        if any(children):
            return None
        return (folder / "stat").read_text().rpartition(")")[2].split()[11:13]
    except OSError:
        return None


@dataclass
class Result:
    """What a call gave; a model is in the slot. Or what it raised."""

    given: Any = None
    in_slot: bool = False
    raised: tuple[str, bool, bytes | None, str] | None = None
    is_last: bool = False  # its process has died

    @classmethod
    def of(cls, given: Any, slot: Slot) -> "Result":
        """Return what a call gave; a model is put into the slot."""
        if not isinstance(given, type(slot)):
            return cls(given)
        for mine, theirs in zip(slot.tensors, given.tensors, strict=True):
            mine.copy_(theirs)
        return cls(in_slot=True)

    @classmethod
    def of_error(cls, error: BaseException) -> "Result":
        """Return what a call raised: a line, whether it is all, the cause, its traceback."""
        text = "".join(traceback.format_exception(error))
        users = isinstance(error, UserError)
        cause = error.__cause__ if users else error
        return cls(raised=(str(Failure.of(error)), users, _sent(cause) if cause else None, text))

    def value(self, slot: Slot) -> Any:
        """Return the result, or the error, with its traceback's text as the last cause."""
        if self.raised is None:
            return slot if self.in_slot else self.given
        line, users, sent, text = self.raised
        failure = UserError(line) if users else Failure(line)
        if text and (sent or not users):
            failure.__cause__ = RuntimeError(line)
            with suppress(Exception):  # a module that this process cannot import
                failure.__cause__ = pickle.loads(sent) if sent else failure.__cause__
            failure.__cause__.__cause__ = _Traceback(text)
        return failure


class _Traceback(Exception):
    """The text of a fork's traceback."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(frozen=True)
class ForkWarning:
    text: str
    category: type[Warning]
    filename: str
    line: int

    @property
    def key(self) -> tuple[object, ...]:
        return self.text, self.category, self.filename, self.line


def _compute(
    calls: Sequence[Call], place: int | None, slot: Slot, end: Connection, parent: int
) -> None:
    """Compute a call, then those that it is told, in this process, which was forked for them."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # which had ended before
        os._exit(1)
    # What a fork computes on one thread has the same bits as in any other process.
    set_threads = torch.set_num_threads
    vars(torch)["set_num_threads"] = lambda count: None
    gc.freeze()  # a collection would write to, and so copy, all that the parent has
    saying = threading.Lock()

    def say(message: object) -> None:
        with saying:
            end.send(message)

    def compute(place: int | None) -> None:
        while place is not None:
            set_threads(1)  # code that has the function by another name may have asked for more
            try:
                say(Result.of(calls[place](lambda: None), slot))
            except (Exception, SystemExit) as error:
                say(Result.of_error(error))
            place = end.recv()

    _report_to(say)
    # OpenMP has a pool for each thread that computes. That of the thread that forked has lost its
    # threads, for which a parallel loop would wait for ever; a new thread has none yet.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(compute, place).result()


def _report_to(say: Callable[[object], None]) -> None:
    """Have this process's log records and warnings said, not handled."""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        category = category if _sent(category) else UserWarning
        say(ForkWarning(str(message), category, filename, lineno))

    warnings.showwarning = show
    saying, root = _Saying(say), logging.getLogger()
    for logger in (root, *root.manager.loggerDict.values()):
        if logger is root or (isinstance(logger, logging.Logger) and logger.handlers):
            logger.handlers = [saying]


class _Saying(logging.Handler):
    """In the place of all handlers, through several of which a record may come."""

    def __init__(self, say: Callable[[object], None]) -> None:
        super().__init__()
        self._say = say
        self._said: logging.LogRecord | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if record is self._said:
            return
        self._said = record
        plain = {key: x for key, x in vars(record).items() if isinstance(x, str | int | float)}
        fields = plain | {"msg": logged_message(record)}
        if record.exc_info and record.exc_info[0]:
            fields["exc_text"] = "".join(traceback.format_exception(*record.exc_info)).rstrip()
        self._say(fields)


def _sent(thing: object) -> bytes | None:
    """Return what another process understands, or None where it would not."""
    try:
        content = pickle.dumps(thing)
        pickle.loads(content)
    except Exception:
        return None
    return content


def shared(tensor: Tensor) -> Tensor:
    """Return memory for a group of one that forks share: no file, whatever ends the processes."""
    if not tensor.numel():
        return tensor.unsqueeze(0).clone()
    memory = mmap.mmap(-1, tensor.nbytes)
    flat = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel())
    return flat.view(1, *tensor.shape)


@contextmanager
def _signals_held() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
