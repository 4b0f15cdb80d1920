"""Forked workers: results and failures come back, and no process stays behind."""

import logging
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from fednnnn_plugin.engine.forks import Forks, why_not_forked
from fednnnn_plugin.engine.workers import Failure, Step, Threads, Workers, all_of
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.server.layout import ModelState

STATE = ModelState(torch.zeros(2), {"seen": torch.tensor(0), "none": torch.zeros(0)})


@pytest.fixture
def forks() -> Forks:
    return Forks(2, STATE)


class Odd(Exception):
    """Pickled, it does not come back."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} {two}")


def raising(error: BaseException) -> Callable[[Step], None]:
    def call(_: Step) -> None:
        raise error

    return call


@pytest.mark.parametrize("make", [lambda: Forks(2, STATE), lambda: Threads(2)])
def test_results_come_with_their_places(make: Callable[[], Workers]) -> None:
    with make() as workers:
        calls = [lambda _, k=k: 10 * k for k in range(5)]
        assert all_of(workers, calls) == [0, 10, 20, 30, 40]
        assert sorted(workers.each(calls)) == [(k, 10 * k) for k in range(5)]
        assert all_of(workers, [lambda _: torch.get_num_threads()]) == [1]


@pytest.mark.parametrize("make", [lambda: Forks(2, STATE), lambda: Threads(2)])
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ZeroDivisionError("no samples"), "ZeroDivisionError: no samples"),
        (Odd(1, 2), "Odd: 1 2"),
        (SystemExit(3), "SystemExit: 3"),
        (UserError("key: 3: must be 2"), "key: 3: must be 2"),
    ],
)
def test_workers_return_what_a_call_raises(
    make: Callable[[], Workers], error: BaseException, said: str
) -> None:
    with make() as workers:
        [(_, found)] = workers.each([raising(error)])
        assert str(found).startswith(said)
        if isinstance(error, UserError):
            assert type(found) is UserError
            return
        assert isinstance(found, Failure)
        assert f"{__file__}, line " in str(found)
        kept = isinstance(error, ZeroDivisionError) or isinstance(workers, Threads)
        assert type(found.__cause__) is (type(error) if kept or said[0] == "S" else RuntimeError)
        with pytest.raises(Failure, match=r"test_forks\.py, line"):
            all_of(workers, [raising(error)])


def test_fork_traceback_is_in_the_log(forks: Forks, caplog: pytest.LogCaptureFixture) -> None:
    [(_, failure)] = forks.each([raising(KeyError("x"))])
    logging.getLogger("mine").error("failed", exc_info=failure)
    assert "in call\n    raise error" in caplog.text
    assert isinstance(failure.__cause__, KeyError)


def test_fork_that_is_killed_is_a_failure(forks: Forks) -> None:
    calls = [lambda _: os.kill(os.getpid(), signal.SIGKILL), lambda _: os._exit(3), lambda _: 1]
    results = dict(forks.each(calls))
    assert "SIGKILL" in str(results[0])
    assert "status 3" in str(results[1])
    assert results[2] == 1


def test_forks_return_models_in_shared_memory(forks: Forks) -> None:
    def trained(k: int, _: Step) -> ModelState:
        buffers = {"seen": torch.tensor([k]), "none": torch.zeros(1, 0)}
        return ModelState(torch.full((1, 2), float(k)), buffers)

    for place, state in forks.each([partial(trained, k) for k in range(5)]):
        assert state.vector.tolist() == [[place, place]]
        assert state.buffers["seen"].tolist() == [place]


@pytest.mark.parametrize(("anew", "found"), [(True, [1] * 5), (False, [1, 2, 3, 4, 5])])
def test_forks_keep_or_drop_what_a_call_changes(anew: bool, found: list[int]) -> None:
    """A data set's own generator, a counter."""
    forks, counts = Forks(1, STATE, anew=anew), [0]

    def count(_: Step) -> int:
        counts[0] += 1
        return counts[0]

    assert all_of(forks, [count] * 5) == found
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
            logging.getLogger("mine").exception("client %d", k)
        warnings.warn("slow", RuntimeWarning, stacklevel=1)

    with pytest.warns(RuntimeWarning, match="slow") as warned:
        all_of(forks, [partial(call, k) for k in range(3)])
    assert len(warned) == 1
    said = sorted(record.getMessage() for record in caplog.records)
    assert said == ["client 0"] * 2 + ["client 1"] * 2 + ["client 2"] * 2
    assert caplog.text.count("ValueError: inside") == 3


def children() -> set[int]:
    tasks = Path("/proc/self/task").glob("*/children")
    return {int(pid) for task in tasks for pid in task.read_text().split()}


def test_closing_ends_the_forks_at_once(forks: Forks) -> None:
    before = children()
    calls = [lambda _: 0, lambda _: time.sleep(600), lambda _: time.sleep(600)]
    with closing(forks.each(calls)) as ended:
        assert next(ended) == (0, 0)
        assert children() - before
    assert children() == before
    assert all_of(forks, [lambda _: 1]) == [1]


class Holding:
    def __init__(self, thing: Any) -> None:
        self.thing = thing


def test_forks_name_what_processes_must_not_share(tmp_path: Path) -> None:
    def closure() -> None: ...

    class Local(torch.nn.Linear):
        pass

    for fits in (Local(2, 2), closure, lambda: 0, torch.Generator(), [torch.zeros(3)], range(3)):
        assert why_not_forked(Holding(fits)) == ""
    with (tmp_path / "data.bin").open("wb") as file:
        for held in (file, threading.Lock(), (x for x in "ab")):
            assert why_not_forked({0: [Holding(held)]})
