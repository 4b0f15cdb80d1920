"""A round of the paper's non-IID conditions on a GPU: ours, side by side, and a one-by-one loop.

    python benchmarks/gpu.py                                        # all four, 100 clients
    python benchmarks/gpu.py --training slots --precision tf32      # the other way to train a group
    python benchmarks/gpu.py --device cpu --clients 3 --samples 50  # a try, without a GPU

The loop has its data on the device, and is PyTorch's SGD on a copy of the model for each client: of
the first five, scaled to the samples of all. Seconds are of training and aggregation in the second
round, the fastest of ``--repeats``. Launches are kernels of a group's step on a GPU, tensor
operations elsewhere, of its first three steps. On one H100 it should take two minutes at most.
"""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import torch
from contenders import federated, now, ours, plain_loop, settings
from harness import data_option, show
from products import DTYPES, ceiling, operations
from slots import TrainInSlots
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from fednnnn_plugin.assembly import executors
from fednnnn_plugin.assembly.from_recipe import local_sgd
from fednnnn_plugin.assembly.functions import Functions
from fednnnn_plugin.client.group_sgd import Group, GroupSGD
from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.client.method import ClientMethod
from fednnnn_plugin.client.replica import layout_of, named_tensors
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.models import create_model
from fednnnn_plugin.processes.devices import total_memory
from fednnnn_plugin.processes.numerics import numerics
from fednnnn_plugin.quantities import Seconds
from fednnnn_plugin.recipe import Recipe
from fednnnn_plugin.rounds.batches import TensorBatches
from fednnnn_plugin.rounds.groups import plan_groups, room_on, widest_group

CONDITIONS = ("mnist_noniid_b", "mnist_noniid_ub", "cifar10_noniid_b", "cifar10_noniid_ub")
HEAD = "train, aggregate, loop, × loop, of product, group, steps, × largest client's, launches"


def launches(recipe: Recipe, data: FederatedData, device: torch.device, first: Group) -> int:
    """Return the launches of a group's first steps, three at most, staging included."""
    sgd, model = local_sgd(recipe, Functions()), create_model(recipe.model_args.model, 0).to(device)
    batches = TensorBatches(data, sgd, device, seed=0)
    start = layout_of(model).gather(named_tensors(model))
    group = GroupSGD(sgd, model, batches.images, batches.labels, batches.normalisation)
    some = 3 * sgd.batch_of(data.client_size(first[0]))
    orders = [[order[:some] for order in batches.orders(client, 1)[:1]] for client in first]
    on_gpu = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as seen:
        group.train(start, orders)
        now(device)
    events = seen.events() or []
    return sum(e.device_type == DeviceType.CUDA if on_gpu else not e.cpu_parent for e in events)


def steps(groups: list[Group], sizes: list[int], sgd: LocalSGD) -> int:
    """Count the steps of a round where each group steps at once, one group after another."""
    largest = [max(sizes[client] for client in group) for group in groups]
    return sgd.epochs * sum(epoch_steps(most, sgd) for most in largest)


def epoch_steps(samples: int, sgd: LocalSGD) -> int:
    """Count the steps of an epoch of so many samples."""
    return -(-samples // sgd.batch_of(samples))


def total(seconds: Seconds) -> float:
    """Return the seconds of a round without its test."""
    return seconds.train + seconds.aggregate


@click.command(help=__doc__)
@click.option("--device", "name", default="cuda", show_default=True)
@click.option("--condition", "conditions", default=CONDITIONS, multiple=True, show_default=True)
@click.option("--clients", default=100, show_default=True, help="The first of the paper's 100.")
@click.option("--samples", type=click.IntRange(1), help="Of each client, at most; default: all.")
@click.option("--precision", default="fp32", type=click.Choice(list(DTYPES)), show_default=True)
@click.option("--training", type=click.Choice(["groups", "slots"]), default="groups")
@click.option("--repeats", default=1, show_default=True)
@data_option
def main(name: str, conditions: tuple[str, ...], clients: int, data: Path, **options: Any) -> None:
    logging.disable(logging.INFO)
    if options["training"] == "slots":
        executors.make_together = TrainInSlots
    device, precision = torch.device(name), options["precision"]
    batching = "auto" if device.type == "cuda" else clients  # a CPU alone would choose 1
    with numerics(precision, device):
        product = ceiling(precision, device)
    click.echo(f"{clients} clients, {precision}, matrix product {product / 1e12:.2f} TFLOP/s\n")
    rows = [("", *f"{HEAD} a step".split(", "))]
    for condition in conditions:
        recipe = settings(condition, clients, precision, data, batching)
        held = federated(recipe, options["samples"])
        some = replace(held, client_indices=held.client_indices[:5])
        side_by_side = ours(recipe, held, device)
        of_some = settings(condition, some.num_clients, precision, data)
        loop = plain_loop(of_some, some, device, staged=True)
        best = min((side_by_side() for _ in range(options["repeats"])), key=total)
        sizes = [len(indices) for indices in held.client_indices]
        share = sum(sizes[:5]) / sum(sizes)
        with numerics(precision, device):
            loop()  # the first round only warms up
            one_by_one = min(total(loop()) for _ in range(options["repeats"])) / share
        sgd = local_sgd(recipe, Functions())
        model = create_model(recipe.model_args.model, 0)
        room = room_on(model, held, total_memory(device))
        asked = recipe.train_args.client_batching
        width = widest_group(model, held, sgd, ClientMethod(), asked, room, str)
        groups = plan_groups(range(clients), sizes, width)
        sequential, longest = steps(groups, sizes, sgd), epoch_steps(max(sizes), sgd)
        largest = sgd.epochs * longest
        with numerics(precision, device):
            a_step = launches(recipe, held, device, groups[0]) / min(3, longest)
        rows.append(
            (
                *(condition, f"{best.train:.3f}", f"{best.aggregate:.3f}", f"{one_by_one:.3f}"),
                f"{one_by_one / total(best):.1f}",
                f"{operations(recipe, held) / best.train / product:.1%}",
                *(str(width), str(sequential), f"{sequential / largest:.2f}", f"{a_step:.0f}"),
            )
        )
    show(*rows)


if __name__ == "__main__":
    main()
