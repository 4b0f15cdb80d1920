"""Workers: results and failures come back from threads and forks; no process stays behind."""

import logging
import mmap
import multiprocessing
import os
import signal
import struct
import subprocess
import threading
import time
import warnings
from contextlib import closing
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from torch import set_num_threads

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.processes import fork
from fednnnn_plugin.processes.endings import Terminated, signals_raised
from fednnnn_plugin.processes.forks import Forks, why_not_forked
from fednnnn_plugin.processes.workers import Failure, Step, Threads, Workers, all_of
from fednnnn_plugin.server.layout import ModelState
from fednnnn_plugin.user_code import on_threads

STATE = ModelState(torch.zeros(2), {"seen": torch.tensor(0), "none": torch.zeros(0)})


@pytest.fixture
def forks() -> Forks:
    return Forks(2, STATE)


@pytest.fixture(params=["threads", "forks"])
def workers(request: pytest.FixtureRequest, forks: Forks) -> Workers:
    return forks if request.param == "forks" else Threads(2)


def test_results_come_with_their_places(workers: Workers) -> None:
    with on_threads(2):
        with workers:
            calls = [lambda _, k=k: 10 * k for k in range(5)]
            assert all_of(workers, calls) == [0, 10, 20, 30, 40]
            assert sorted(workers.each(calls)) == [(k, 10 * k) for k in range(5)]
            assert all_of(workers, [lambda _: torch.get_num_threads()]) == [1]
        assert torch.get_num_threads() == 2


class Odd(Exception):
    """Pickled, it does not come back."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} {two}")


class Wordless(RuntimeError):
    def __str__(self) -> str:
        return self.args[7]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Wordless(), "Wordless: <exception str"),
        (ZeroDivisionError("no samples"), "ZeroDivisionError: no samples"),
        (Odd(1, 2), "Odd: 1 2"),
        (SystemExit(3), "SystemExit: 3"),
        (UserError("key: 3: must be 2"), "key: 3: must be 2"),
    ],
)
def test_workers_return_what_a_call_raises(
    workers: Workers, error: BaseException, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    def raising(_: Step) -> None:
        raise error

    usual = not isinstance(error, UserError)
    with workers:
        [(_, found)] = workers.each([raising])
        with pytest.raises(Failure if usual else UserError, match=f"^{said}") as raised:
            all_of(workers, [raising])
    assert (type(found), str(found)) == (raised.type, str(raised.value))
    if not usual:
        return
    assert f"{__file__}, line " in str(found)
    lost = isinstance(error, Odd) and isinstance(workers, Forks)
    assert type(found.__cause__) is (RuntimeError if lost else type(error))
    logging.getLogger("mine").error("failed", exc_info=found)
    assert "in raising\n    raise error" in caplog.text


def test_fork_that_is_killed_is_a_failure(forks: Forks) -> None:
    calls = [lambda _: os.kill(os.getpid(), signal.SIGKILL), lambda _: os._exit(3), lambda _: 1]
    results = dict(forks.each(calls))
    assert "SIGKILL" in str(results[0])
    assert "status 3" in str(results[1])
    assert results[2] == 1


def test_fork_that_dies_between_calls_is_a_failure() -> None:
    """Of the call that it was to compute next."""

    def die(_: Step) -> int:
        send = Connection.send

        def send_and_die(pipe: Connection, message: object) -> None:
            send(pipe, message)
            os._exit(3)

        Connection.send = send_and_die
        return 0

    results = {}
    for place, found in Forks(1, STATE).each([die, lambda _: 1, lambda _: 2]):
        results[place] = found
        for process in multiprocessing.active_children() if place == 0 else ():
            process.join(10)
    assert "status 3" in str(results[1])
    assert (results[0], results[2]) == (0, 2)


@pytest.mark.parametrize("content", [struct.pack("!i", 9) + b"short", struct.pack("!i", 1) + b"K"])
def test_fork_that_dies_in_a_message_is_a_failure(forks: Forks, content: bytes) -> None:
    """One that ends early, or holds no object."""

    def die(_: Step) -> None:
        def send(pipe: Connection, _message: object) -> None:
            os.write(pipe.fileno(), content)
            os._exit(3)

        Connection.send = send

    results = dict(forks.each([die, lambda _: 1]))
    assert "status 3" in str(results[0])
    assert results[1] == 1


def test_signals_pass_over_a_fork_but_end_what_it_starts(forks: Forks) -> None:
    """A program, and a process that is forked; a wait of the fork goes on."""
    context = multiprocessing.get_context("fork")
    begun, begin = context.Pipe(duplex=False)

    def wait() -> None:
        begin.send(None)
        time.sleep(10)

    def strike(_: Step) -> list[int | None]:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        time.sleep(0.1)
        shell = subprocess.run(["sh", "-c", "kill $$"], check=False)
        process = context.Process(target=wait)
        process.start()
        assert begun.poll(10)
        process.terminate()
        process.join()
        return [shell.returncode, process.exitcode]

    assert all_of(forks, [strike]) == [[-signal.SIGTERM] * 2]


def test_fork_that_leaves_a_child_is_a_failure(forks: Forks) -> None:
    """Which has the fork's end of the pipe, and lives on."""
    pids = mmap.mmap(-1, 8)

    def leave(_: Step) -> None:
        if not (child := os.fork()):
            time.sleep(600)
        pids[:] = child.to_bytes(8, "big")
        os.kill(os.getpid(), signal.SIGKILL)

    try:
        results = dict(forks.each([leave, lambda _: 1]))
    finally:
        os.kill(int.from_bytes(pids[:], "big"), signal.SIGKILL)
    assert "SIGKILL" in str(results[0])
    assert results[1] == 1


def test_stop_as_a_fork_starts_leaves_no_process(
    forks: Forks, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = fork.ForkProcess.start

    def struck(process: fork.ForkProcess) -> None:
        start(process)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(fork.ForkProcess, "start", struck)
    with pytest.raises(Terminated), signals_raised(ends_process=False):
        all_of(forks, [lambda _: time.sleep(600)])
    left = multiprocessing.active_children()
    for process in left:  # else this process would wait for them at its end
        process.kill()
    assert not left


def test_fork_ends_where_its_pipe_is_closed() -> None:
    """Also where another one was started after it."""
    started: dict[Connection, fork.Fork] = {}
    for _ in range(2):
        each = fork.Fork(0, STATE)
        started[each.start([lambda _: 1], started)] = each
    for pipe, each in started.items():
        assert each.heard(pipe).given == 1
        pipe.close()
        each.process.join(10)
        ended = each.process.exitcode
        each.process.kill()
        assert ended == 0


@pytest.mark.slow
def test_fork_that_waits_for_ever_is_named_and_ended(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A lock that a thread of this process holds; but not what waits for a child of its own.

    It is ended while another one logs.
    """
    monkeypatch.setattr(fork, "SILENT_SECONDS", 0.5)
    monkeypatch.setattr(fork, "STUCK_SECONDS", 3.0)
    held = threading.Lock()

    def wait_for_child(_: Step) -> int:
        return subprocess.run(["sleep", "4"], check=False).returncode

    def compute(_: Step) -> int:
        until = time.process_time() + 3
        while time.process_time() < until:
            pass
        return 2

    first_ended = multiprocessing.Event()

    def log(_: Step) -> bool:
        deadline = time.monotonic() + 60.0
        while not first_ended.wait(0.3) and time.monotonic() < deadline:
            logging.getLogger("steps").warning("a step")
        return first_ended.is_set()

    results: dict[int, object] = {}
    with held:
        calls = [lambda _: held.acquire(), wait_for_child, compute, log]
        for place, result in Forks(4, STATE).each(calls):
            results[place] = result
            if place == 0:
                first_ended.set()
    assert "worker_num: 1" in str(results[0])
    assert (results[1], results[2], results[3]) == (0, 2, True)
    assert sum("has said nothing" in record.getMessage() for record in caplog.records) == 3


def test_fork_computes_on_one_thread(forks: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its code asks for more, in a process that had them: they are not in the fork.

    A parallel loop of this process has started them.
    """
    monkeypatch.setattr(fork, "SILENT_SECONDS", 2.0)
    monkeypatch.setattr(fork, "STUCK_SECONDS", 5.0)

    def compute(_: Step) -> tuple[int, float, float]:
        torch.set_num_threads(2)
        product = torch.ones(300, 300) @ torch.ones(300, 300)
        before = torch.get_num_threads()
        set_num_threads(4)  # which is not a name of torch's
        return before, float(product.sum()), float(torch.zeros(1_000_000).exp().sum())

    with on_threads(2):
        assert compute(lambda: None) == (2, 300.0**3, 1e6)
        assert all_of(forks, [compute] * 3) == [(1, 300.0**3, 1e6)] * 3


def test_forks_keep_or_drop_what_a_call_changes() -> None:
    """A data set's own generator, a counter; the model comes in memory that both processes have."""
    counts = [0]

    def count(_: Step) -> ModelState:
        counts[0] += 1
        buffers = {"seen": torch.tensor(counts), "none": torch.zeros(1, 0)}
        return ModelState(torch.full((1, 2), float(counts[0])), buffers)

    for anew, numbers in ((True, [1] * 5), (False, [1, 2, 3, 4, 5])):
        ended = Forks(1, STATE, anew=anew).each([count] * 5)
        for (_, found), number in zip(ended, numbers, strict=True):
            assert (found.vector.tolist(), found.buffers["seen"]) == ([[number] * 2], number)
    assert counts == [0]


def test_log_records_and_warnings_reach_this_process(
    forks: Forks, caplog: pytest.LogCaptureFixture
) -> None:
    """As from one process: a warning once."""

    def call(k: int, _: Step) -> None:
        logging.getLogger("mine.deep").warning("client %d", k, extra={"lock": threading.Lock()})
        try:
            raise ValueError("inside")
        except ValueError:
            logging.getLogger("mine").exception("failed")
        warnings.warn("slow", RuntimeWarning, stacklevel=1)

    with pytest.warns(RuntimeWarning, match="slow") as warned:
        all_of(forks, [partial(call, k) for k in range(3)])
    assert len(warned) == 1
    said = sorted(record.getMessage() for record in caplog.records)
    assert said == ["client 0", "client 1", "client 2"] + ["failed"] * 3
    assert caplog.text.count("ValueError: inside") == 3


def test_closing_ends_the_calls_at_once(forks: Forks) -> None:
    def children() -> set[str]:
        tasks = Path("/proc/self/task").glob("*/children")
        return {pid for task in tasks for pid in task.read_text().split()}

    before = children()
    calls = [lambda _: 0, lambda _: time.sleep(600), lambda _: time.sleep(600)]
    with closing(forks.each(calls)) as ended:
        assert next(ended) == (0, 0)
        assert children() - before
    assert children() == before
    assert all_of(forks, [lambda _: 1]) == [1]

    def steps(before_step: Step) -> None:
        while True:
            before_step()

    with Threads(2) as threads, closing(threads.each([lambda _: 0, steps, steps])) as ended:
        assert next(ended) == (0, 0)  # leaving waits for the others, which are stopped


def test_forks_name_what_processes_must_not_share() -> None:
    class Cells(torch.nn.Linear):
        """Its class is defined in a function, as in a notebook."""

    for fits in (Cells(2, 2), lambda: 0, torch.Generator(), [torch.zeros(3)], range(3)):
        assert why_not_forked({0: fits}) == ""
    model = Cells(2, 2)
    for model.held in (threading.Lock(), (x for x in "ab")):
        assert why_not_forked({0: model})


class Cancelled(BaseException):
    """As asyncio has one."""


def test_what_ends_a_call_of_a_thread_is_raised() -> None:
    def cancel(_: Step) -> None:
        raise Cancelled

    with Threads(2) as threads:
        with pytest.raises(Cancelled):
            all_of(threads, [lambda _: 1, cancel, lambda _: 2])
        assert all_of(threads, [lambda _: 3]) == [3]
