"""How long ``fednnnn report`` takes for 20 runs of 250 rounds; the goal is 20 s.

    python tests/benchmarks/report.py

The runs are made up, one for each method and condition of CIFAR-10.
"""

from __future__ import annotations

import importlib.util
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

GOAL = 20.0
ROUNDS = 250
METHODS = ("PaperFedAvg", "PaperFedProx", "NormNorm", "Momentum", "FedNNNN")


def made_up() -> Any:
    """Return the module that makes up runs for the tests."""
    path = Path(__file__).parents[1] / "report" / "conftest.py"
    spec = importlib.util.spec_from_file_location("made_up", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_runs(folder: Path) -> None:
    """Write the 20 run folders."""
    runs = made_up()
    conditions = itertools.product(("iid", "n_class"), ("balanced", "power_law"))
    for method, (partition, sizes) in itertools.product(METHODS, list(conditions)):
        settings = runs.recipe(
            method,
            dataset="cifar10",
            partition_method=partition,
            partition_sizes=sizes,
            comm_round=ROUNDS,
        )
        run = folder / f"{method}-{partition}-{sizes}"
        runs.write_run(run, settings, runs.rounds_of(settings, ROUNDS))


@click.command(help=__doc__)
@click.option("--repeats", default=5, show_default=True)
def main(repeats: int) -> None:
    fednnnn = Path(sys.executable).with_name("fednnnn")
    seconds = []
    with tempfile.TemporaryDirectory() as name:
        runs, out = Path(name, "runs"), Path(name, "out")
        runs.mkdir()
        write_runs(runs)
        for _ in range(repeats):
            started = time.perf_counter()
            subprocess.run(
                [fednnnn, "report", runs, "--out", out], check=True, stdout=subprocess.DEVNULL
            )
            seconds.append(time.perf_counter() - started)
    click.echo(
        f"20 runs of {ROUNDS} rounds: {statistics.median(seconds):.2f} s "
        f"({min(seconds):.2f} to {max(seconds):.2f}); goal {GOAL:.0f} s"
    )


if __name__ == "__main__":
    main()
