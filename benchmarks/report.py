"""How long ``fednnnn report`` takes for 20 runs of 250 rounds; the goal is 20 s.

    python benchmarks/report.py

The runs are made up, one for each method and condition of CIFAR-10.
"""

import itertools
import runpy
import tempfile
from pathlib import Path

import click
from harness import BIN, command, in_turn, spread, timed

MADE_UP = Path(__file__).parents[1] / "tests" / "reporting" / "conftest.py"
maker = runpy.run_path(str(MADE_UP))["maker"]
METHODS = ("PaperFedAvg", "PaperFedProx", "NormNorm", "Momentum", "FedNNNN")


@click.command(help=__doc__)
@click.option("--repeats", default=5, show_default=True)
def main(repeats: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        runs = Path(name, "runs")
        make_run = maker(runs)
        for method, partition, sizes in itertools.product(
            METHODS, ("iid", "n_class"), ("balanced", "power_law")
        ):
            make_run(
                method,
                dataset="cifar10",
                partition_method=partition,
                partition_sizes=sizes,
                comm_round=250,
            )
        report = timed(command, BIN / "fednnnn", "report", runs, "--out", f"{name}/out")
        [seconds] = in_turn({"report": report}, repeats).values()
    click.echo(f"20 runs of 250 rounds: {spread(seconds)} s; goal 20 s")


if __name__ == "__main__":
    main()
