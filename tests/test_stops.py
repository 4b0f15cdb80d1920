"""Stops: signals at any moment, most of all while a process starts, when much is imported."""

import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from fednnnn_plugin.processes import job
from fednnnn_plugin.processes.endings import (
    Terminated,
    raise_lost_stop,
    resumable,
    signals_raised,
)
from fednnnn_plugin.processes.ranks import Ranks
from fednnnn_plugin.quantities import RoundRecord
from fednnnn_plugin.run_folder.folder import RunFolder, checkpoints_in, round_of
from fednnnn_plugin.run_folder.records import MetricsFile

from .support.ranks import on_ranks
from .tiny import Tiny

CORE = "numpy.core" if np.lib.NumpyVersion(np.__version__) < "2.0.0" else "numpy._core"
#: ``fednnnn`` in a process that gets a signal when it imports a module.
STRUCK = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[2] and self in sys.meta_path:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), getattr(signal, sys.argv[1]))

sys.meta_path.insert(0, Finder())
from fednnnn_plugin.cli import main
main(sys.argv[3:], "fednnnn")
"""
RUN = "run digits_noniid_b_fedavg --set=comm_round=1 --set=using_gpu=false"
PROGRAM = [sys.executable, "-c", STRUCK]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "module", "sent"),
    [
        (RUN, "torch", "SIGTERM"),
        (RUN, f"{CORE}.multiarray", "SIGINT"),
        ("tune digits_noniid_b_fedavg --rounds=1", CORE, "SIGTERM"),
        ("report .", "numpy", "SIGINT"),
    ],
)
def test_stop_during_start_up_ends(command: str, module: str, sent: str, tmp_path: Path) -> None:
    words = [*PROGRAM, sent, module, *command.split()]
    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, check=False)
    expected = (130, b"interrupted\n") if sent == "SIGINT" else (143, b"terminated\n")
    assert (ended.returncode, ended.stderr, ended.stdout) == (*expected, b"")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_stop_during_start_up_ends_ranks(tmp_path: Path) -> None:
    ended = on_ranks(2, *PROGRAM, "SIGTERM", f"{CORE}.multiarray", *RUN.split(), cwd=tmp_path)
    assert (ended.status, ended.stdout) == (143, "")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def send() -> Iterator[Callable[[int], None]]:
    """Send this process a signal; after a stop its signals would stay ignored."""
    before = {number: signal.getsignal(number) for number in (1, 2, 10, 15)}
    yield lambda number: os.kill(os.getpid(), number)
    for number, handler in before.items():
        signal.signal(number, handler)


class Second(Ranks):
    rank, size = 1, 2

    def abort(self, status: int) -> None:
        self.aborted = status


def test_rank_that_alone_is_stopped_names_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After the time in which rank 0 would have ended it."""
    monkeypatch.setattr(job, "_TIME_TO_SAVE", 0.0)
    for name, number in (("RANK", "1"), ("SIZE", "2")):
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", number)
    ranks = Second()
    with pytest.raises(Terminated), job.ending_together(ranks), resumable():
        raise Terminated
    assert ranks.aborted == 143
    said = f"rank 1 on {platform.node()}: terminated; continue with --resume\n"
    assert capsys.readouterr().err == said


def test_stop_that_is_swallowed_comes_again(send: Callable[[int], None]) -> None:
    def swallowing() -> None:
        for again in (raise_lost_stop, lambda: send(signal.SIGHUP)):
            with suppress(Terminated):
                send(signal.SIGTERM)
            with pytest.raises(Terminated):
                again()
        try:
            send(signal.SIGTERM)
        except Terminated:
            send(signal.SIGINT)  # ignored: the first one has arrived

    with pytest.raises(Terminated), signals_raised():  # at the end
        swallowing()


def test_stop_is_raised_for_the_error_it_causes(send: Callable[[int], None]) -> None:
    def broken_import() -> None:
        with suppress(KeyboardInterrupt):
            send(signal.SIGINT)
        raise ImportError("numpy is half there")

    with pytest.raises(KeyboardInterrupt), signals_raised():
        broken_import()


def test_round_on_record_has_its_state(
    tiny: Tiny, send: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop right after a round is put on record, before its state is held."""
    append = MetricsFile.append

    def append_and_stop(file: MetricsFile, record: RoundRecord) -> None:
        append(file, record)
        for number in (signal.SIGTERM, signal.SIGINT):  # the first one counts
            send(number)

    monkeypatch.setattr(MetricsFile, "append", append_and_stop)
    with pytest.raises(Terminated), signals_raised():
        tiny("stopped", checkpoint_every=99)
    folder = RunFolder(tiny.folder / "stopped")
    assert folder.metrics.read_text().count("\n") == 1
    assert [round_of(path) for path in checkpoints_in(folder.checkpoints)] == [1]
