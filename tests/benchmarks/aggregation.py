"""What exact streaming aggregation costs beside a plain ``sum.add_(delta)`` and FedML's average.

The passes are timed in turn, round by round, so that a busy machine slows all of them alike; wall
clock, and the processor's time, which other programs disturb less. The goal is an ``add`` within
ten plain passes, norms and exactness included. Then 100 clients of the CIFAR-10 network, in 0.6 s,
against ``FedMLAggOperator.agg``, which holds all of them at once.

    python tests/benchmarks/aggregation.py
"""

import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace

import click
import torch
from torch import Tensor

from fednnnn_plugin.client.replica import named_tensors
from fednnnn_plugin.models import create_model
from fednnnn_plugin.server.average import UpdateAccumulator

Work = dict[str, Callable[[], object]]


def passes(parameters: int) -> Work:
    """Return what is timed; every call works on the same, already touched memory."""
    generator = torch.Generator().manual_seed(0)

    def model() -> dict[str, Tensor]:
        """A convolution, one large layer and a bias."""
        sizes = {"conv.weight": parameters // 20, "fc.bias": 1000}
        sizes["fc.weight"] = parameters - sum(sizes.values())
        return {name: 0.01 * torch.randn(n, generator=generator) for name, n in sizes.items()}

    served, client = model(), model()
    total, delta = torch.zeros(parameters), torch.randn(parameters, generator=generator)
    acc, other = (UpdateAccumulator(served, list(served)) for _ in range(2))
    other.add(client, 1.0)
    return {
        "sum.add_(delta)": lambda: total.add_(delta),
        "add": lambda: acc.add(client, 1.0),
        "merge": lambda: acc.merge(other),
        "finish": acc.finish,
    }


def cohort(clients: int) -> Work:
    """Return the average of so many CIFAR-10 clients, FedML's way and ours."""
    from fedml.ml.aggregator.agg_operator import FedMLAggOperator

    network = create_model("nnnn_cifar10", 0)
    served, trainable = named_tensors(network), [name for name, _ in network.named_parameters()]
    generator = torch.Generator().manual_seed(0)
    states = [{name: tensor.clone() for name, tensor in served.items()} for _ in range(clients)]
    for state in states:
        for name in trainable:
            state[name] += 0.01 * torch.randn(state[name].shape, generator=generator)
    args = SimpleNamespace(federated_optimizer="FedAvg", ml_engine_backend="torch")

    def fedml() -> object:
        # A copy of the first, which it overwrites; the time of that is small beside the rest.
        pairs = [(500, dict(states[0])), *((500, state) for state in states[1:])]
        return FedMLAggOperator.agg(args, pairs)

    def ours() -> object:
        accumulator = UpdateAccumulator(served, trainable)
        for state in states:
            accumulator.add(state, 1.0)
        return accumulator.finish()

    return {"FedMLAggOperator.agg": fedml, f"{clients} CIFAR-10 clients": ours}


def compare(work: Work, rounds: int) -> None:
    """Time the work, and print the medians and how many of the first one each costs."""
    walls: dict[str, list[float]] = {name: [] for name in work}
    processors: dict[str, list[float]] = {name: [] for name in work}
    for number in range(rounds + 1):
        for name, call in work.items():
            wall, processor = time.perf_counter(), time.process_time()
            call()
            if number:  # the first round only warms up
                processors[name].append(time.process_time() - processor)
                walls[name].append(time.perf_counter() - wall)
    first = next(iter(work))
    for name in work:
        wall, processor = (
            statistics.median(times[name]) / statistics.median(times[first])
            for times in (walls, processors)
        )
        low, middle, high = (1e3 * f(walls[name]) for f in (min, statistics.median, max))
        click.echo(
            f"{name:22}{middle:9.1f} ms ({low:.1f} to {high:.1f})"
            f"{wall:8.1f} x{processor:8.1f} x in processor time"
        )


@click.command(help=__doc__)
@click.option("--parameters", default=10_000_000, show_default=True, type=click.IntRange(min=2000))
@click.option("--rounds", default=15, show_default=True, type=click.IntRange(min=5))
@click.option("--threads", default=None, type=click.IntRange(min=1), help="PyTorch's own choice.")
def main(parameters: int, rounds: int, threads: int | None) -> None:
    if threads is not None:
        torch.set_num_threads(threads)
    click.echo(f"{parameters:,} parameters, {rounds} rounds, {torch.get_num_threads()} threads")
    compare(passes(parameters), rounds)
    compare(cohort(100), 5)


if __name__ == "__main__":
    main()
