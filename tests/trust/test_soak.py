"""A long run takes no more memory, files or threads at its end than at its beginning."""

from pathlib import Path
from statistics import median_high
from time import sleep
from typing import Any

import pytest

from ..support.commands import quick_run

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
    started = commands.start(*quick_run("run", comm_round=ROUNDS, **keys), folder=tmp_path)
    metrics = tmp_path / "run" / "metrics.jsonl"
    first, last, done = [], [], 0
    while done < ROUNDS - 1:  # in the last round it may end
        if 10 <= done < ROUNDS / 4:
            first.append(used(started.pid))
        elif done > ROUNDS * 3 / 4:
            last.append(used(started.pid))
        sleep(0.005)
        done = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
    assert commands.wait(started).status == 0
    assert min(len(first), len(last)) > 20
    (pages, *others), (last_pages, *last_others) = (
        map(median_high, zip(*part, strict=True)) for part in (first, last)
    )
    assert last_pages <= 1.01 * pages
    assert all(late <= early for early, late in zip(others, last_others, strict=True))
