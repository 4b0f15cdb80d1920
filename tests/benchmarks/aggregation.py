"""What exact streaming aggregation costs beside a plain ``sum.add_(delta)`` and FedML's average.

The passes are timed in turn, round by round, so that a busy machine slows all of them alike; wall
clock, and the processor's time, which other programs disturb less. The goal is an ``add`` within
ten plain passes, norms and exactness included. Then 100 clients of the CIFAR-10 network, against
``FedMLAggOperator.agg``, which holds all of them at once.

    python tests/benchmarks/aggregation.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import click
import torch
from torch import Tensor

from fednnnn_plugin.client.replica import named_tensors
from fednnnn_plugin.models import create_model
from fednnnn_plugin.server.average import UpdateAccumulator

GOAL = 10.0


@dataclass(frozen=True)
class Timing:
    """Seconds of one pass, by the wall clock and of the processor, one value a round."""

    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def ratio(self, plain: Timing) -> tuple[float, float]:
        """Return how many plain passes the median pass costs, by either clock."""
        return (
            statistics.median(self.wall) / statistics.median(plain.wall),
            statistics.median(self.processor) / statistics.median(plain.processor),
        )


def model(parameters: int, fill: float) -> dict[str, Tensor]:
    """Return a model of a convolution's size, one large layer and a bias."""
    sizes = {"conv.weight": parameters // 20, "fc.bias": 1000}
    sizes["fc.weight"] = parameters - sum(sizes.values())
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(size, generator=generator).mul_(0.01).add_(fill)
        for name, size in sizes.items()
    }


def passes(parameters: int) -> dict[str, Callable[[], object]]:
    """Return what is timed; every call works on the same, already touched memory."""
    served, client = model(parameters, 0.0), model(parameters, 0.001)
    total = torch.zeros(parameters)
    delta = torch.randn(parameters, generator=torch.Generator().manual_seed(1))
    acc, other = (UpdateAccumulator(served, list(served)) for _ in range(2))
    other.add(client, 1.0)
    return {
        "sum.add_(delta)": lambda: total.add_(delta),
        "add": lambda: acc.add(client, 1.0),
        "merge": lambda: acc.merge(other),
        "finish": acc.finish,
    }


def measure(work: dict[str, Callable[[], object]], rounds: int) -> dict[str, Timing]:
    timings = {name: Timing() for name in work}
    for number in range(rounds + 1):
        for name, call in work.items():
            wall, processor = time.perf_counter(), time.process_time()
            call()
            if number:  # the first round only warms up
                timings[name].processor.append(time.process_time() - processor)
                timings[name].wall.append(time.perf_counter() - wall)
    return timings


def cohort(clients: int, rounds: int) -> dict[str, Timing]:
    """Time the average of so many CIFAR-10 clients, FedML's way and ours."""
    from types import SimpleNamespace

    from fedml.ml.aggregator.agg_operator import FedMLAggOperator

    network = create_model("nnnn_cifar10", 0)
    served = named_tensors(network)
    trainable = [name for name, _ in network.named_parameters()]
    states = []
    for client in range(clients):
        generator = torch.Generator().manual_seed(client)
        state = {name: tensor.clone() for name, tensor in served.items()}
        for name in trainable:
            state[name] += 0.01 * torch.randn(state[name].shape, generator=generator)
        states.append(state)
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

    return measure({"FedMLAggOperator.agg": fedml, "ours": ours}, rounds)


@click.command(help=__doc__)
@click.option("--parameters", default=10_000_000, show_default=True, type=click.IntRange(min=2000))
@click.option("--rounds", default=15, show_default=True, type=click.IntRange(min=5))
@click.option("--threads", default=None, type=click.IntRange(min=1), help="PyTorch's own choice.")
def main(parameters: int, rounds: int, threads: int | None) -> None:
    if threads is not None:
        torch.set_num_threads(threads)
    click.echo(
        f"{parameters:,} parameters, {rounds} rounds, {torch.get_num_threads()} threads, "
        f"PyTorch {torch.__version__}"
    )
    timings = measure(passes(parameters), rounds)
    plain = timings["sum.add_(delta)"]
    click.echo(f"{'':16}{'median (range), ms':>28}{'wall':>10}{'processor':>12}")
    for name, timing in timings.items():
        low, middle, high = (
            f"{1e3 * pick(timing.wall):.1f}" for pick in (min, statistics.median, max)
        )
        wall, processor = timing.ratio(plain)
        click.echo(f"{name:16}{f'{middle} ({low} to {high})':>28}{wall:8.1f} x{processor:10.1f} x")
    wall, processor = timings["add"].ratio(plain)
    click.echo(
        f"one add costs {wall:.1f} plain passes, {processor:.1f} in processor time; "
        f"goal: at most {GOAL:.0f}"
    )
    timings = cohort(100, 5)
    fedml = timings["FedMLAggOperator.agg"]
    wall, processor = timings["ours"].ratio(fedml)
    click.echo(
        f"100 clients of the CIFAR-10 network: {statistics.median(timings['ours'].wall):.2f} s "
        f"exact, streaming, with norms; FedMLAggOperator.agg {statistics.median(fedml.wall):.2f} s "
        f"(ratio {wall:.1f}, in processor time {processor:.1f})"
    )


if __name__ == "__main__":
    main()
