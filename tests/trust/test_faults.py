"""Runs that are killed, told to stop, out of disk space or long: nothing is lost or left."""

import itertools
import os
import re
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path
from statistics import median_high
from typing import Any

import pytest

from ..support.commands import quick_words
from ..support.processes import wait_until

TABLES = {"per_client": True, "per_class": True}


def lines(folder: Path) -> list[bytes]:
    """The whole lines on record, perhaps of a run that is just writing one more."""
    file = folder / "metrics.jsonl"
    return file.read_bytes().split(b"\n")[:-1] if file.exists() else []


def kept_rounds(folder: Path) -> list[int]:
    """The rounds of the checkpoints, the newest first."""
    there = (folder / "checkpoint").glob("round-*.safetensors")
    return sorted((int(path.stem.split("-")[1]) for path in there), reverse=True)


def contents(folder: Path) -> frozenset[tuple[Path, bytes]]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return frozenset((path.relative_to(folder), path.read_bytes()) for path in files)


def go_on(commands: Any, content: Any, folder: Path, undisturbed: Path) -> None:
    """Go on with a run of two rounds that was cut short: it ends as the undisturbed one did."""
    more = ["--resume"] if (folder / ".lock").exists() else []
    words = quick_words(folder, *more, comm_round=2, **TABLES)
    ended = commands.run(*words, folder=folder.parent)
    assert ended.status == 0, (folder, ended)
    assert content(folder) == content(undisturbed)
    assert (folder / "recipe.yaml").read_bytes() == (undisturbed / "recipe.yaml").read_bytes()
    assert not list(folder.rglob("*tmp"))
    # One more may be there that a killed process had no time to remove.
    assert kept_rounds(folder)[:2] == kept_rounds(undisturbed)
    assert len(kept_rounds(folder)) <= 3


@pytest.mark.slow
def test_kill_before_each_change_of_a_file(commands: Any, content: Any, tmp_path: Path) -> None:
    """What each kill would leave behind goes on to the bytes of the undisturbed run."""
    folder = tmp_path / "run"
    words = quick_words(folder, comm_round=2, **TABLES)
    ended = commands.run(*words, folder=tmp_path, copied=str(folder))
    assert ended.status == 0
    killed = list(tmp_path.glob("run-*"))
    assert len(killed) > 26
    for left in {contents(left): left for left in killed}.values():
        go_on(commands, content, left, folder)


@pytest.mark.slow
def test_full_disk_from_each_change_of_a_file(commands: Any, content: Any, tmp_path: Path) -> None:
    """It befalls a run of one round, which goes on to the second."""
    undisturbed, folder, at = tmp_path / "undisturbed", tmp_path / "run", 0
    left = set()
    words = quick_words(undisturbed, comm_round=2, **TABLES)
    assert commands.run(*words, folder=tmp_path).status == 0
    for at in itertools.count(1):
        words = quick_words(folder, **TABLES)
        ended = commands.run(*words, folder=tmp_path, full=(str(folder), at))
        if ended.status == 0:
            break
        said = ended.check_one_line(1)
        assert re.fullmatch(r".*run[-\w./]*: No space left on device", said), said
        there = (*sorted(folder.rglob("*")), len(lines(folder)))
        if there not in left:
            left.add(there)
            go_on(commands, content, folder, undisturbed)
        shutil.rmtree(folder, ignore_errors=True)
    assert at > 18
    assert len(left) > 8


@pytest.mark.slow
def test_second_signal_does_not_cost_the_checkpoint(commands: Any, tmp_path: Path) -> None:
    """As from a batch system, which tells the job and then each of its processes."""
    for sent, wait, status, said in (
        (signal.SIGTERM, 0.0, 143, "terminated"),
        (signal.SIGHUP, 0.0, 143, "terminated"),  # a terminal that was closed
        (signal.SIGINT, 0.004, 130, "interrupted"),
    ):
        folder = tmp_path / sent.name
        arguments = quick_words(folder, comm_round=10_000, checkpoint_every=10_000)
        started = commands.start(*arguments, folder=tmp_path)
        wait_until(lambda of=folder: len(lines(of)) >= 2, lambda of=started: not of.is_alive())
        os.kill(started.pid, sent)
        time.sleep(wait)
        with suppress(ProcessLookupError):  # it ended meanwhile
            os.kill(started.pid, sent)
        ended = commands.wait(started)
        assert ended.check_one_line(status) == f"{said}; continue with --resume"
        assert kept_rounds(folder) == [len(lines(folder))]


SLEEPING = """
import os, time
from pathlib import Path
from torch import nn

STARTED = os.getpid()

class Sleeping(nn.Flatten):
    def forward(self, images):
        if os.getpid() != STARTED:  # in a fork
            Path(f"sleeps-{os.getpid()}").touch()
            time.sleep(600)
        return super().forward(images)

def net(num_classes):
    return nn.Sequential(Sleeping(), nn.Linear(64, num_classes))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_processes_of_a_users_model_end(
    commands: Any, tmp_path: Path, sent: signal.Signals, status: int
) -> None:
    (tmp_path / "mine.py").write_text(SLEEPING)
    arguments = quick_words("run", "--allow-code", model="mine:net")
    started = commands.start(*arguments, folder=tmp_path)
    sleeping = wait_until(lambda: list(tmp_path.glob("sleeps-*")), lambda: not started.is_alive())
    os.kill(started.pid, sent)
    assert commands.wait(started).status == status
    for path in sleeping:
        memory = Path("/proc", path.name.removeprefix("sleeps-"), "statm")
        wait_until(lambda of=memory: not of.exists() or of.read_text()[0] == "0")


ROUNDS = 200


def used(process: int) -> tuple[int, int, int]:
    """Pages of memory, open files and threads."""
    place = Path(f"/proc/{process}")
    files, threads = (len(list((place / name).iterdir())) for name in ("fd", "task"))
    return int((place / "statm").read_text().split()[1]), files, threads


@pytest.mark.slow
def test_memory_is_level_over_hundreds_of_rounds(commands: Any, tmp_path: Path) -> None:
    """Medians: a file that is just being written is open, too."""
    keys = {"client_num_per_round": 2, "batch_size": 100, "checkpoint_every": 25}
    started = commands.start(*quick_words("run", comm_round=ROUNDS, **keys), folder=tmp_path)
    first, last, done = [], [], 0
    while done < ROUNDS - 1:  # in the last round it may end
        if 10 <= done < ROUNDS / 4:
            first.append(used(started.pid))
        elif done > ROUNDS * 3 / 4:
            last.append(used(started.pid))
        time.sleep(0.005)
        done = len(lines(tmp_path / "run"))
    assert commands.wait(started).status == 0
    assert min(len(first), len(last)) > 20
    (pages, *others), (last_pages, *last_others) = (
        map(median_high, zip(*part, strict=True)) for part in (first, last)
    )
    assert last_pages <= 1.01 * pages
    assert all(late <= early for early, late in zip(others, last_others, strict=True))
