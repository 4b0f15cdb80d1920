"""What the benchmarks share: work in turn, its spread, a table, and commands that are timed."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import click

BIN = Path(sys.executable).parent
T = TypeVar("T")

data_option = click.option(
    "--data",
    default=Path(os.environ.get("FEDNNNN_DATA", "~/fedml_data")).expanduser(),
    type=click.Path(exists=True),
    show_default=True,
    help="The folder with MNIST and CIFAR-10.",
)


def in_turn(work: Mapping[str, Callable[[], T]], repeats: int) -> dict[str, list[T]]:
    """Do all of the work, then all of it again: a busy machine slows all of it alike."""
    results: dict[str, list[T]] = {name: [] for name in work}
    for _ in range(repeats):
        for name, call in work.items():
            results[name].append(call())
    return results


def timed(call: Callable[..., object], *arguments: object) -> Callable[[], float]:
    """Return what makes a call and returns its seconds."""

    def seconds() -> float:
        started = time.perf_counter()
        call(*arguments)
        return time.perf_counter() - started

    return seconds


def command(*words: object) -> None:
    """Run a command; show what it printed only if it fails."""
    given = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    ended = subprocess.run(
        [str(word) for word in words],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | given,
    )
    if ended.returncode:
        raise click.ClickException(f"{words}: status {ended.returncode}\n{ended.stderr}")


def run_of(*words: object, **settings: object) -> tuple[float, list[float]]:
    """Run a recipe; return the seconds of the command, and those recorded of each round."""
    options = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    with tempfile.TemporaryDirectory() as folder:
        wall = timed(command, *words, *options, "--output", f"{folder}/run")()
        lines = Path(folder, "run", "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return wall, [sum(json.loads(line)["seconds"].values()) for line in lines]


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Write the median, and in brackets the smallest and the largest."""
    low, middle, high = (f(values) for f in (min, statistics.median, max))
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def show(*rows: Sequence[str]) -> None:
    """Print a table; the first row is its head."""
    head, *others = rows
    for row in (head, ["---"] * len(head), *others):
        click.echo(f"| {' | '.join(row)} |")
