"""Stops: signals at any moment, most of all while a process starts, when much is imported."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from fednnnn_plugin.engine.endings import Terminated, raise_lost_stop, signals_raised

CORE = "numpy.core" if np.lib.NumpyVersion(np.__version__) < "2.0.0" else "numpy._core"
IMPORTED = ["numpy", CORE, f"{CORE}.multiarray", "torch"]
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
ENDS = {"SIGINT": (130, "interrupted"), "SIGTERM": (143, "terminated")}
COMMANDS = {
    "run": ["digits_noniid_b_fedavg", "--set=comm_round=1", "--set=using_gpu=false"],
    "tune": ["digits_noniid_b_fedavg", "--rounds=1", "--grid=learning_rate=0.1"],
    "partition": ["digits_noniid_b_fedavg", "--csv=counts.csv"],
    "report": ["."],
    "recipes": [],
}


def struck(
    name: str, module: str, command: str, folder: Path, launcher: Sequence[str | Path] = ()
) -> tuple[int, str, str]:
    words = [command, *COMMANDS[command]]
    ended = subprocess.run(
        [*launcher, sys.executable, "-c", STRUCK, name, module, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {f"OMPI_ALLOW_RUN_AS_ROOT{end}": "1" for end in ("", "_CONFIRM")},
    )
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_stop_during_start_up_ends_every_command(command: str, tmp_path: Path) -> None:
    """While the command is imported, and a run at each of the moments."""
    for number, module in enumerate(IMPORTED if command == "run" else IMPORTED[:1]):
        name = list(ENDS)[(number + len(command)) % 2]
        status, said = ENDS[name]
        assert struck(name, module, command, tmp_path) == (status, "", f"{said}\n"), module
        assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_stop_during_start_up_ends_ranks(tmp_path: Path) -> None:
    launcher = (Path(sys.executable).with_name("mpirun"), "-np", "2", "--oversubscribe")
    status, stdout, _ = struck("SIGTERM", f"{CORE}.multiarray", "run", tmp_path, launcher)
    assert (status, stdout) == (143, "")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def handlers() -> Iterator[None]:
    """The process's handlers are put back: after a stop its signals stay ignored."""
    before = {number: signal.getsignal(number) for number in (1, 2, 10, 15)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
def test_stop_that_is_swallowed_comes_again() -> None:
    stops = []

    def stopped() -> None:
        for again in (raise_lost_stop, lambda: os.kill(os.getpid(), signal.SIGINT)):
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            except BaseException as error:
                stops.append(type(error))
                os.kill(os.getpid(), signal.SIGTERM)  # ignored: the first one has arrived
            try:
                again()
            except BaseException as error:
                stops.append(type(error))
        with suppress(Terminated):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Terminated), signals_raised():  # at the end
        stopped()
    assert stops == [Terminated, Terminated, Terminated, KeyboardInterrupt]


@pytest.mark.usefixtures("handlers")
def test_stop_is_raised_for_the_error_it_causes() -> None:
    def imported() -> None:
        with suppress(Terminated):
            os.kill(os.getpid(), signal.SIGHUP)
        raise ImportError("numpy is half there")

    with pytest.raises(Terminated), signals_raised():
        imported()
