"""One MNIST round on one rank and on two, each training one client at a time.

The two are launched one after another, each as ``mpirun`` would, and the seconds are those that the
run itself records: training, aggregation and test, without the start of Python. Nothing else should
run meanwhile. The goal is that two ranks take at most 0.55 of one rank's time.

    python tests/benchmarks/ranks.py                 # the paper's K = 100, about two minutes
    python tests/benchmarks/ranks.py --clients 20    # a quick look
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import click

RECIPE = "mnist_noniid_b_fednnnn"
GOAL = 0.55
_BIN = Path(sys.executable).parent


def seconds(ranks: int, clients: int, rounds: int, data: Path) -> list[float]:
    """Run the recipe on so many ranks; return the seconds of each round."""
    settings = {
        "train_args.client_num_per_round": clients,
        "train_args.comm_round": rounds,
        "train_args.checkpoint_every": rounds,
        "data_args.data_cache_dir": data,
        "data_args.download": "false",
        "device_args.using_gpu": "false",
        "device_args.worker_num": 1,
    }
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                *(_BIN / "mpirun", "-np", str(ranks), "--oversubscribe", "--bind-to", "none"),
                *(_BIN / "fednnnn", "run", RECIPE, "--backend", "MPI", "--output", f"{folder}/run"),
                *(part for k, v in settings.items() for part in ("--set", f"{k}={v}")),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            env=os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
        )
        lines = Path(folder, "run", "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [sum(json.loads(line)["seconds"].values()) for line in lines]


@click.command()
@click.option("--clients", default=100, show_default=True, help="m: how many of the 100 train.")
@click.option("--rounds", default=1, show_default=True, help="The fastest one counts.")
@click.option("--ranks", default=[1, 2], multiple=True, show_default=True)
@click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True),
    default=lambda: Path(os.environ.get("FEDNNNN_DATA", "~/fedml_data")).expanduser(),
    help="The folder with MNIST; default $FEDNNNN_DATA, else ~/fedml_data.",
)
def main(clients: int, rounds: int, ranks: tuple[int, ...], data: Path) -> None:
    """Print the seconds of a round by the number of ranks."""
    click.echo(f"{RECIPE}, {clients} clients a round, one at a time on each rank")
    click.echo(f"{'ranks':>5}  {'seconds a round':>15}  {'of one rank':>11}")
    base = 0.0
    for count in ranks:
        best = min(seconds(count, clients, rounds, data))
        base = base or best
        click.echo(f"{count:>5}  {best:>15.2f}  {best / base:>11.3f}")
    if len(ranks) > 1:
        click.echo(f"goal for two ranks: at most {GOAL}")


if __name__ == "__main__":
    main()
