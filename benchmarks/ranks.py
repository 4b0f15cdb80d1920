"""One MNIST round on one rank and on two, each training one client at a time.

The two are launched one after another, each as ``mpirun`` would, and the seconds are those that the
run itself records: training, aggregation and test, without the start of Python. Nothing else should
run meanwhile. The goal is that two ranks take at most 0.55 of one rank's time.

    python benchmarks/ranks.py                 # the paper's K = 100, about two minutes
    python benchmarks/ranks.py --clients 20    # a quick look
"""

from pathlib import Path

import click
from harness import BIN, data_option, run_of, show


@click.command(help=__doc__)
@click.option("--clients", default=100, show_default=True, help="m: how many of the 100 train.")
@click.option("--rounds", default=1, show_default=True, help="The fastest one counts.")
@click.option("--ranks", default=[1, 2], multiple=True, show_default=True)
@data_option
def main(clients: int, rounds: int, ranks: tuple[int, ...], data: Path) -> None:
    settings = {
        "train_args.client_num_per_round": clients,
        "train_args.comm_round": rounds,
        "train_args.checkpoint_every": rounds,
        "data_args.data_cache_dir": data,
        "data_args.download": "false",
        "device_args.using_gpu": "false",
        "device_args.worker_num": 1,
    }
    fednnnn = (BIN / "fednnnn", "run", "mnist_noniid_b_fednnnn", "--backend", "MPI")
    best = []
    for count in ranks:
        mpirun = (BIN / "mpirun", "-np", count, "--oversubscribe", "--bind-to", "none")
        best.append(min(run_of(*mpirun, *fednnnn, **settings)[1]))
    click.echo(f"{clients} clients a round, one at a time on each rank; goal for two: 0.55")
    show(
        ("ranks", "seconds a round", f"of {ranks[0]}"),
        *(
            (str(count), f"{seconds:.2f}", f"{seconds / best[0]:.3f}")
            for count, seconds in zip(ranks, best, strict=True)
        ),
    )


if __name__ == "__main__":
    main()
