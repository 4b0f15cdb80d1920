"""What exact streaming aggregation costs beside a plain ``sum.add_(delta)`` and FedML's average.

    python benchmarks/aggregation.py

The goal is an ``add`` within ten plain passes, norms and exactness included. Then 100 clients of
the CIFAR-10 network, in 0.6 s, against ``FedMLAggOperator.agg``, which holds all of them at once.
"""

import statistics
from collections.abc import Callable
from types import SimpleNamespace

import click
import torch
from harness import in_turn, show, spread, timed
from torch import Tensor

from fednnnn_plugin.client.replica import named_tensors
from fednnnn_plugin.models import create_model
from fednnnn_plugin.server.accumulator import UpdateAccumulator

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


def compare(work: Work, repeats: int) -> None:
    """Time the work, and print how many of the first one each costs."""
    seconds = in_turn({name: timed(call) for name, call in work.items()}, repeats + 1)
    times = {name: values[1:] for name, values in seconds.items()}  # the first only warms up
    first, *_ = map(statistics.median, times.values())
    show(
        ("", "ms", f"x {next(iter(work))}"),
        *(
            (name, spread([1e3 * value for value in values], 1), f"{ratio:.1f}")
            for name, values in times.items()
            for ratio in [statistics.median(values) / first]
        ),
    )


@click.command(help=__doc__)
@click.option("--parameters", default=10_000_000, show_default=True, type=click.IntRange(min=2000))
@click.option("--repeats", default=15, show_default=True)
def main(parameters: int, repeats: int) -> None:
    click.echo(f"{parameters:,} parameters, {torch.get_num_threads()} threads")
    compare(passes(parameters), repeats)
    compare(cohort(100), min(5, repeats))


if __name__ == "__main__":
    main()
