"""A long run takes no more memory, files or threads at its end than at its beginning."""

from collections.abc import Callable
from pathlib import Path
from statistics import median_high
from time import sleep
from typing import Any, NamedTuple

import pytest

ROUNDS = 800


class Use(NamedTuple):
    """What a process takes at a moment."""

    pages: int
    files: int
    threads: int


def use_of(process: int) -> Use:
    place = Path(f"/proc/{process}")
    pages = int((place / "statm").read_text().split()[1])
    return Use(pages, *(len(list((place / name).iterdir())) for name in ("fd", "task")))


@pytest.mark.slow
def test_hundreds_of_rounds(commands: Any, quick: Callable[..., list[str]], tmp_path: Path) -> None:
    """Medians: a file that is just being written is open, too."""
    settings = {"client_num_per_round": 2, "batch_size": 100, "checkpoint_every": 25}
    arguments = quick("run", comm_round=ROUNDS, **settings)
    pid = commands.start(*arguments, folder=tmp_path, seconds=600)
    metrics = tmp_path / "run" / "metrics.jsonl"
    while not metrics.exists():
        sleep(0.01)
    first: list[Use] = []
    last: list[Use] = []
    done = 0
    with metrics.open("rb") as lines:
        while done < ROUNDS - 1:  # in the last round it may end
            done += lines.read().count(b"\n")
            if 10 <= done <= ROUNDS / 4:
                first.append(use_of(pid))
            elif 3 / 4 * ROUNDS <= done < ROUNDS - 1:
                last.append(use_of(pid))
            sleep(0.01)
    assert commands.wait(pid).status == 0
    assert min(len(first), len(last)) > 50
    before, after = (Use(*map(median_high, zip(*use, strict=True))) for use in (first, last))
    assert after.pages <= 1.01 * before.pages
    assert after.files <= before.files
    assert after.threads <= before.threads
