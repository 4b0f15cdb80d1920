"""A process that was forked for a user's code: its start, what it computes, and how it ends."""

import ctypes
import gc
import logging
import mmap
import multiprocessing
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from fednnnn_plugin.processes.endings import ENDING
from fednnnn_plugin.processes.fork_messages import Result, Slot, report_to
from fednnnn_plugin.processes.workers import Call, Failure

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
#: Seconds after which a fork that has said nothing is named, and after which one is ended that has
#: no children and has used no processor time since: it waits for what no thread of it will do.
SILENT_SECONDS, STUCK_SECONDS = 120.0, 600.0
_LONGEST_LOOK = 2.0
_BETWEEN_LOOKS = 0.5  # at least: others may send thousands of messages a second
_DIES_WITHIN = 1.0  # of what is read on its pipe
_WHY = "custom code in it may wait for a lock that another thread of the program held"
_REMEDY = "device_args.worker_num: 1 trains arrays and tensors in the program itself"
_log = logging.getLogger(__name__)
_context = multiprocessing.get_context("fork")


@dataclass
class Fork:
    """A process that computes a call, and others when it is told their places."""

    place: int
    slot: Slot

    def start(self, calls: Sequence[Call], others: Iterable[Connection] = ()) -> Connection:
        """Start it; return the pipe that it is heard and told on, as ``others`` are on theirs."""
        pipe, end = _context.Pipe()
        self.process: ForkProcess = _context.Process(
            target=_compute,
            args=(calls, self.place, self.slot, end, (*others, pipe), os.getpid()),
            name="client",
        )
        self._heard_at, self._is_named, self._stuck = time.monotonic(), False, ""
        self._looked_at, self._used, self._idle = self._heard_at, object(), 0.0
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # until the fork ignores them
        try:
            with warnings.catch_warnings():
                # Python 3.12 warns of other threads' locks: a fork uses none of their work.
                warnings.filterwarnings("ignore", "This process .* is multi-threaded")
                self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        end.close()
        return pipe

    def heard(self, pipe: Connection) -> Any:
        """Return what it says; a result also where it has died."""
        self._heard_at, self._is_named = time.monotonic(), False
        try:
            if self.process.exitcode is None or pipe.poll():
                return pipe.recv()
        except (EOFError, OSError, UnpicklingError):  # it has died, perhaps within a message
            self.process.join(_DIES_WITHIN)
            self.process.kill()
            self.process.join()
        code = self.process.exitcode or 0
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
        why = self._stuck or f"its process was ended {how}"
        return Result(raised=(Failure(why), None, ""), is_last=True)

    def has_ended(self) -> bool:
        """Tell whether it has, also where its own children hold the pipe; look after it."""
        now = time.monotonic()
        silent, is_due = now - self._heard_at, now - self._looked_at > _BETWEEN_LOOKS
        if silent > SILENT_SECONDS and is_due and self.process.exitcode is None:
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


def _compute(
    calls: Sequence[Call],
    place: int | None,
    slot: Slot,
    end: Connection,
    parents: Iterable[Connection],
    parent: int,
) -> None:
    """Compute a call, then those that it is told, in this process, which was forked for them."""
    _leave_signals_to_parent()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # which had ended before
        os._exit(1)
    for pipe in parents:  # held here, it would never be seen to be closed there
        pipe.close()
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

    report_to(say)
    # OpenMP has a pool for each thread that computes. That of the thread that forked has lost its
    # threads, for which a parallel loop would wait for ever; a new thread has none yet.
    with ThreadPoolExecutor(1) as thread, suppress(EOFError, ConnectionError):  # its parent left it
        thread.submit(compute, place).result()


def _leave_signals_to_parent() -> None:
    """Have the signals that end a process do nothing in this fork, and end what it starts.

    A program would inherit that a signal is ignored; no handler. A process forked from this one has
    the system's: a handler of Python's may run late there.
    """

    def pass_over(_number: int, _frame: object) -> None:
        pass

    def end_children() -> None:
        for number in ENDING:
            if signal.getsignal(number) is pass_over:
                signal.signal(number, signal.SIG_DFL)

    os.register_at_fork(after_in_child=end_children)
    signal.set_wakeup_fd(-1)  # it would tell the parent's event loop
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it, for all processes
            signal.signal(number, pass_over)
            signal.siginterrupt(number, False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def shared(tensor: Tensor) -> Tensor:
    """Return memory for a group of one that forks share: no file, whatever ends the processes."""
    if not tensor.numel():
        return tensor.unsqueeze(0).clone()
    memory = mmap.mmap(-1, tensor.nbytes)
    flat = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel())
    return flat.view(1, *tensor.shape)
