"""Runs that are killed, told to stop, or out of disk space, at any moment: nothing is lost."""

import itertools
import json
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROUNDS = 40
Quick = Callable[..., list[str]]


def lines(folder: Path) -> list[bytes]:
    """The whole lines on record, perhaps of a run that is just writing one more."""
    file = folder / "metrics.jsonl"
    return file.read_bytes().split(b"\n")[:-1] if file.exists() else []


def kept_rounds(folder: Path) -> list[int]:
    """The rounds of the checkpoints, the newest first."""
    names = [path.name for path in (folder / "checkpoint").glob("round-*.safetensors")]
    return sorted((int(name.split("-")[1]) for name in names), reverse=True)


@pytest.fixture(scope="module")
def whole(commands: Any, quick: Quick, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that nothing disturbed: of 2 rounds, and of more."""
    folder = tmp_path_factory.mktemp("whole")
    for rounds in (2, ROUNDS):
        assert commands.run(*quick(rounds, comm_round=rounds), folder=folder).status == 0
    return folder


def check_same(folder: Path, whole: Path) -> None:
    """Check that a finished run is the undisturbed one, and left nothing behind."""
    done, expected = (
        [json.loads(line) | {"seconds": None} for line in lines(place)] for place in (folder, whole)
    )
    assert done == expected
    for name in ("model.safetensors", "recipe.yaml"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes()
    assert not list(folder.rglob("*tmp"))
    # One more may be there that a killed process had no time to remove.
    assert kept_rounds(folder)[:2] == kept_rounds(whole)
    assert len(kept_rounds(folder)) <= 3


@pytest.fixture
def struck(
    commands: Any, quick: Quick, whole: Path, tmp_path: Path
) -> Callable[[str], Iterator[Any]]:
    """Strike a run of two rounds at its first change of a file, its second, …

    After each it goes on, to the bytes of the undisturbed one.
    """

    def each(kind: str) -> Iterator[Any]:
        folder, arguments = tmp_path / "run", quick("run", comm_round=2)
        for at in itertools.count(1):
            ended = commands.run(*arguments, folder=tmp_path, strike=(kind, at, str(folder)))
            if ended.status == 0:
                return
            yield ended
            more = ["--resume"] if (folder / ".lock").exists() else []
            resumed = commands.run(*arguments, *more, folder=tmp_path)
            assert resumed.status == 0, (at, resumed)
            check_same(folder, whole / "2")
            shutil.rmtree(folder)

    return each


@pytest.mark.slow
def test_a_kill_before_each_change_of_a_file(struck: Any) -> None:
    """Before each is opened, synced, renamed or removed."""
    endings = [killed.status for killed in struck("kill")]
    assert len(endings) >= 25
    assert set(endings) == {-signal.SIGKILL}


@pytest.mark.slow
def test_a_disk_that_is_full_from_each_change_of_a_file_on(struck: Any) -> None:
    endings = [ended.check_one_line(1) for ended in struck("full")]
    assert len(endings) >= 25
    for line in endings:
        assert re.fullmatch(r".*run[-\w./]*: No space left on device", line), line


@pytest.mark.slow
def test_a_second_signal_does_not_cost_the_checkpoint(
    commands: Any, quick: Quick, tmp_path: Path
) -> None:
    """As from a batch system, which tells the job and then each of its processes."""
    for wait in (0.0, 0.004):
        folder = tmp_path / str(wait)
        arguments = quick(folder, comm_round=10_000, checkpoint_every=10_000)
        started = commands.start(*arguments, folder=tmp_path)
        while len(lines(folder)) < 2:
            time.sleep(0.01)
        os.kill(started.pid, signal.SIGTERM)
        time.sleep(wait)
        os.kill(started.pid, signal.SIGTERM)
        ended = commands.wait(started)
        assert ended.check_one_line(143) == "terminated; go on with --resume"
        assert kept_rounds(folder) == [len(lines(folder))]


@pytest.mark.slow
def test_signals_at_random_moments_of_one_run(
    commands: Any, quick: Quick, whole: Path, tmp_path: Path
) -> None:
    folder, moments, done = tmp_path / "run", random.Random(0), 0
    statuses = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGKILL: -signal.SIGKILL}
    arguments = quick("run", comm_round=ROUNDS)
    for sent, status in [*statuses.items()] * 2:
        started = commands.start(*arguments, *["--resume"] * bool(done), folder=tmp_path)
        while max(kept_rounds(folder), default=0) <= done:
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 0.05))
        os.kill(started.pid, sent)
        ended = commands.wait(started)
        assert ended.status == status, ended
        if status > 0:
            assert ended.check_one_line(status).endswith("ed; go on with --resume")
        done = kept_rounds(folder)[0]
        assert len(lines(folder)) in (done, done + 1)
    assert commands.run(*arguments, "--resume", folder=tmp_path).status == 0
    check_same(folder, whole / str(ROUNDS))
