"""Processes killed at any moment: what they leave is gone on with, to the same bytes."""

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fednnnn_plugin.cli import main
from fednnnn_plugin.engine.records import RoundRecord

SETTINGS = {
    "client_num_per_round": 4,
    "comm_round": 8,
    "epochs": 1,
    "checkpoint_every": 1,
    "device_args.using_gpu": False,
}

# Imports once and forks for every run: 20 interpreters would take minutes to start.
NURSERY = """
import json, os, signal, sys, time
import fednnnn_plugin.engine.launch, fednnnn_plugin.engine.progress
import sklearn.datasets
from fednnnn_plugin.cli import main

def dying(left, fsync=os.fsync):
    def sync(file):
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        fsync(file)
    return sync

for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if order["fsync"]:
            os.fsync = dying(order["fsync"])
        main(order["arguments"])
    if order["seconds"] is not None:
        time.sleep(order["seconds"])
        os.kill(child, signal.SIGKILL)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Nursery:
    """Starts runs as processes of their own, one after another."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", NURSERY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def run(self, arguments: list[str], *, seconds: float | None = None, fsync: int = 0) -> int:
        """Run ``fednnnn``; return its exit code.

        Args:
            arguments: its own.
            seconds: kill it after so long.
            fsync: have it die at its call of that number, counted from 1.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"arguments": arguments, "seconds": seconds, "fsync": fsync}
        self._process.stdin.write(json.dumps(order) + "\n")
        return int(self._process.stdout.readline())

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def arguments(folder: Path, *more: str) -> list[str]:
    keys = {k if "." in k else f"train_args.{k}": v for k, v in SETTINGS.items()}
    sets = [part for k, v in keys.items() for part in ("--set", f"{k}={json.dumps(v)}")]
    return ["run", "digits_noniid_b_fednnnn", "--output", str(folder), *sets, *more]


def resumed(folder: Path) -> bytes:
    result = CliRunner().invoke(main, arguments(folder, "--resume"), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return (folder / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.end()


@pytest.fixture(scope="module")
def whole(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, float]:
    """The model of a run that nothing happened to, and the seconds that it took."""
    folder = tmp_path_factory.mktemp("whole")
    assert nursery.run(arguments(folder / "first")) == 0  # until here imports count, too
    began = time.monotonic()
    assert nursery.run(arguments(folder / "run")) == 0
    return (folder / "run" / "model.safetensors").read_bytes(), time.monotonic() - began


@pytest.mark.slow
@pytest.mark.parametrize("moment", [f"{random.Random(n).uniform(0, 1):.3f}" for n in range(20)])
def test_a_run_killed_at_any_moment_goes_on(
    nursery: Nursery, whole: tuple[bytes, float], tmp_path: Path, moment: str
) -> None:
    model, seconds = whole
    code = nursery.run(arguments(tmp_path / "run"), seconds=float(moment) * seconds)
    assert code in (-signal.SIGKILL, 0)
    assert resumed(tmp_path / "run") == model


@pytest.mark.slow
@pytest.mark.parametrize("fsync", range(1, 11))
def test_a_run_killed_while_it_writes_goes_on(
    nursery: Nursery, whole: tuple[bytes, float], tmp_path: Path, fsync: int
) -> None:
    """The recipe takes two calls; then each round one for its records and two for each file."""
    assert nursery.run(arguments(tmp_path / "run"), fsync=fsync) == -signal.SIGKILL
    assert resumed(tmp_path / "run") == whole[0]


@pytest.mark.slow
def test_a_run_killed_over_and_over_goes_on(
    nursery: Nursery, whole: tuple[bytes, float], tmp_path: Path
) -> None:
    """Every process lives for one round and a half."""
    codes = [nursery.run(arguments(tmp_path / "run", "--resume"), fsync=9) for _ in range(6)]
    assert codes == [-signal.SIGKILL] * 6
    assert resumed(tmp_path / "run") == whole[0]


@pytest.mark.slow
def test_two_thousand_rounds_take_no_more_memory_files_or_threads_at_their_end(
    example: Any,
) -> None:
    samples: list[tuple[int, int, int]] = []

    def sample(record: RoundRecord) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        samples.append((pages, len([*Path("/proc/self/fd").iterdir()]), threading.active_count()))

    settings = {"comm_round": 2_000, "checkpoint_every": 100}
    example.follow(example.every_round(), on_round=sample, **settings)
    first, last = samples[:500], samples[-500:]
    for column, slack in ((0, 1.02), (1, 1), (2, 1)):
        highest = [max(sample[column] for sample in quarter) for quarter in (first, last)]
        assert highest[1] <= slack * highest[0]
