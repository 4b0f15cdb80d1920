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

from fednnnn_plugin.engine.checkpoint import CheckpointFolder
from fednnnn_plugin.engine.records import MetricsFile

ROUNDS = 60
Quick = Callable[..., list[str]]


def model(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def records(folder: Path) -> list[dict[str, Any]]:
    """The records but for their times."""
    file = folder / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line) | {"seconds": None} for line in lines]


def rounds_of(folder: Path) -> int:
    """How many rounds are on record, perhaps of a run that is just writing one more."""
    file = folder / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def check_whole(folder: Path) -> int:
    """Check that the newest checkpoint, if any, is whole and on record; return its round."""
    if not (folder / "recipe.yaml").exists():
        return 0
    checkpoint = CheckpointFolder(folder / "checkpoint").load(
        MetricsFile(folder / "metrics.jsonl").rounds()
    )
    return checkpoint.round if checkpoint else 0


@pytest.fixture(scope="module")
def whole(commands: Any, quick: Quick, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that nothing disturbed: of 1 round, of 2, of 3, and of more."""
    folder = tmp_path_factory.mktemp("whole")
    for rounds in (1, 2, 3, ROUNDS):
        assert commands.run(*quick(rounds, comm_round=rounds), folder=folder).status == 0
    return folder


def check_same(folder: Path, whole: Path) -> None:
    """Check that a finished run is the undisturbed one, and left nothing behind."""
    assert model(folder) == model(whole)
    assert records(folder) == records(whole)
    newest, other = (max((f / "checkpoint").iterdir()).name for f in (folder, whole))
    assert newest[:12] == other[:12]
    assert not list(folder.rglob("*tmp"))
    kept = min(len(records(whole)), 2)
    # One more may be there that a killed process had no time to remove.
    assert len(list((folder / "checkpoint").iterdir())) in (kept, kept + 1)


@pytest.fixture
def struck(
    commands: Any, quick: Quick, whole: Path, tmp_path: Path
) -> Callable[[str, int], Iterator[tuple[Path, Any]]]:
    """Strike a run of one more round at its first change of a file, its second, …"""

    def each(kind: str, done: int) -> Iterator[tuple[Path, Any]]:
        arguments = quick("run", comm_round=done + 1)
        for at in itertools.count(1):
            folder = tmp_path / str(at)
            folder.mkdir()
            if done:
                shutil.copytree(whole / str(done), folder / "run")
            fault = {"kind": kind, "at": at, "within": str(folder / "run")}
            more = ["--resume"] if done else []
            ended = commands.run(*arguments, *more, folder=folder, **fault)
            if ended.status == 0:
                return
            yield folder / "run", ended
            assert check_whole(folder / "run") in (done, done + 1)
            more = ["--resume"] if (folder / "run" / ".lock").exists() else []
            resumed = commands.run(*arguments, *more, folder=folder)
            assert resumed.status == 0, (at, resumed)
            check_same(folder / "run", whole / str(done + 1))

    return each


@pytest.mark.slow
@pytest.mark.parametrize("done", [0, 2])
@pytest.mark.parametrize(("kind", "least"), [("kill", 25), ("half", 4)])
def test_a_kill_before_each_change_of_a_file(struck: Any, kind: str, least: int, done: int) -> None:
    """Before each is opened, grown, synced, renamed or removed; after half of each is written."""
    strikes = 0
    for _, killed in struck(kind, done):
        strikes += 1
        assert killed.status == -signal.SIGKILL, killed
    assert strikes >= least


@pytest.mark.slow
def test_a_disk_that_is_full_from_each_change_of_a_file_on(struck: Any) -> None:
    strikes = 0
    for _, ended in struck("full", 2):
        strikes += 1
        line = ended.check_one_line(1)
        assert re.fullmatch(r".*run[-\w./]*: No space left on device", line), line
    assert strikes >= 20


@pytest.mark.slow
def test_a_second_signal_does_not_cost_the_checkpoint(
    commands: Any, quick: Quick, tmp_path: Path
) -> None:
    """As from a batch system, which tells the job and then each of its processes."""
    for wait in (0.0, 0.001, 0.004, 0.016):
        folder = tmp_path / str(wait)
        arguments = quick(folder, comm_round=10_000, checkpoint_every=10_000)
        started = commands.start(*arguments, folder=tmp_path)
        while rounds_of(folder) < 2:
            time.sleep(0.01)
        os.kill(started.pid, signal.SIGTERM)
        time.sleep(wait)
        os.kill(started.pid, signal.SIGTERM)
        assert started.wait().check_one_line(143) == "terminated; go on with --resume"
        assert check_whole(folder) >= 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "status"),
    [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)],
)
def test_signals_at_random_moments_of_one_run(
    commands: Any, quick: Quick, whole: Path, tmp_path: Path, sent: signal.Signals, status: int
) -> None:
    moments, arguments = random.Random(status), quick("run", comm_round=ROUNDS)
    folder, done = tmp_path / "run", 0
    for _ in range(5):
        started = commands.start(*arguments, folder=tmp_path)
        if "--resume" not in arguments:
            arguments.append("--resume")
        while not folder.exists() or check_whole(folder) <= done:
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 0.1))
        os.kill(started.pid, sent)
        ended = started.wait()
        assert ended.status == status
        if status > 0:
            assert ended.check_one_line(status).endswith("ed; go on with --resume")
        before, done = done, check_whole(folder)
        assert done > before
        assert len(records(folder)) in (done, done + 1)
    assert commands.run(*arguments, folder=tmp_path).status == 0
    check_same(folder, whole / str(ROUNDS))
