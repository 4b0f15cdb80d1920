"""A round of the paper's non-IID conditions on a GPU: ours, side by side, and a one-by-one loop.

    python tests/benchmarks/gpu.py                                        # all four, 100 clients
    python tests/benchmarks/gpu.py --device cpu --clients 3 --samples 50  # a try, without a GPU

The loop has its data on the device, and is PyTorch's SGD on a copy of the model for each client.
Seconds are of training and aggregation in the second round, the fastest of ``--repeats``. Goals: 20
times the loop's speed for clients of one size, 8 times under the power law. Launches are kernels on
a GPU, tensor operations elsewhere.
"""

from __future__ import annotations

import copy
import logging
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import torch
from contenders import Last
from torch.autograd import DeviceType
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from training import DATA, DTYPES, ceiling, federated, operations, settings

from fednnnn_plugin.client.group_sgd import GroupSGD
from fednnnn_plugin.client.groups import Group, plan_groups
from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.client.replica import layout_of, named_tensors
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.engine.batches import TensorBatches
from fednnnn_plugin.engine.devices import numerics
from fednnnn_plugin.engine.run import run_federation
from fednnnn_plugin.engine.settings import local_sgd
from fednnnn_plugin.models import create_model
from fednnnn_plugin.recipe import Recipe

CONDITIONS = ("mnist_noniid_b", "mnist_noniid_ub", "cifar10_noniid_b", "cifar10_noniid_ub")


def ours(recipe: Recipe, data: FederatedData, device: torch.device) -> tuple[float, float, int]:
    """Return the seconds of training and of aggregation, and how wide the groups are."""
    last, model = Last(), create_model(recipe.model_args.model, 0)
    given: dict[str, Any] = {"model": model, "data": data, "device": device, "followers": [last]}
    with tempfile.TemporaryDirectory() as name:
        summary = run_federation(recipe, folder=Path(name, "run"), **given)
    assert summary is not None
    return last.seconds.train, last.seconds.aggregate, summary.client_batching


def loop(recipe: Recipe, data: FederatedData, device: torch.device) -> float:
    """Return the seconds of the second round of clients one by one."""
    train, sgd, data = recipe.train_args, local_sgd(recipe), data.to(device)
    served = create_model(recipe.model_args.model, 0).to(device)
    started = 0.0
    for _ in range(2):
        started, states = now(device), []
        for indices in data.client_indices:
            model = copy.deepcopy(served).train()
            optimizer = torch.optim.SGD(
                model.parameters(), lr=train.learning_rate, weight_decay=train.weight_decay
            )
            for _ in range(train.epochs):
                order = indices[torch.randperm(len(indices), device=device)]
                for batch in order.split(train.batch_size):
                    images, labels = data.train_images[batch], data.train_labels[batch]
                    optimizer.zero_grad()
                    with sgd.autocast(device):
                        loss = F.cross_entropy(model(images), labels)
                    loss.backward()
                    optimizer.step()
            states.append(model.state_dict())
        mean = {k: torch.stack([s[k] for s in states]).float().mean(0) for k in states[0]}
        served.load_state_dict(mean)
    return now(device) - started


def launches(recipe: Recipe, data: FederatedData, device: torch.device, width: int) -> float:
    """Return the launches of a step of the first group, staging included."""
    sgd, model = local_sgd(recipe), create_model(recipe.model_args.model, 0).to(device)
    batches = TensorBatches(data, sgd, 0, device)
    sizes = [data.client_size(client) for client in range(data.num_clients)]
    [first, *_] = plan_groups(range(data.num_clients), sizes, width)
    start = layout_of(model).gather(named_tensors(model))
    group = GroupSGD(sgd, model, batches.images, batches.labels, len(first))
    orders = [batches.orders(client, 1) for client in first]
    on_gpu = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as seen:
        group.train(start, orders)
        now(device)
    events = seen.events() or []
    count = sum(e.device_type == DeviceType.CUDA if on_gpu else not e.cpu_parent for e in events)
    return count / steps([first], sizes, sgd)


def steps(groups: list[Group], sizes: list[int], sgd: LocalSGD) -> int:
    """Count the steps of a round where each group steps at once, one group after another."""
    largest = [max(sizes[client] for client in group) for group in groups]
    return sgd.epochs * sum(-(-most // sgd.batch_of(most)) for most in largest)


def now(device: torch.device) -> float:
    """Return the time when the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


@click.command(help=__doc__)
@click.option("--device", "name", default="cuda", show_default=True)
@click.option("--condition", "conditions", default=CONDITIONS, multiple=True, show_default=True)
@click.option("--clients", default=100, show_default=True, help="The first of the paper's 100.")
@click.option("--samples", type=click.IntRange(1), help="Of each client, at most; default: all.")
@click.option("--precision", default="fp32", type=click.Choice(list(DTYPES)), show_default=True)
@click.option("--repeats", default=3, show_default=True)
@click.option("--data", "folder", default=DATA, type=click.Path(exists=True), show_default=True)
def main(
    name: str, conditions: tuple[str, ...], clients: int, samples: int | None, **options: Any
) -> None:
    logging.disable(logging.INFO)
    device, precision = torch.device(name), options["precision"]
    batching = "auto" if device.type == "cuda" else clients  # a CPU alone would choose 1
    with numerics(precision):
        product = ceiling(DTYPES[precision], device)
    click.echo(f"{clients} clients, {precision}, matrix product {product / 1e12:.2f} TFLOP/s\n")
    click.echo(
        "| | train | aggregate | loop | × loop | of product | group | steps | × largest client's "
        "| launches a step |\n|---|---|---|---|---|---|---|---|---|---|"
    )
    for condition in conditions:
        recipe = settings(condition, clients, precision, options["folder"], batching)
        data = federated(recipe)
        data = replace(data, client_indices=tuple(held[:samples] for held in data.client_indices))
        runs = [ours(recipe, data, device) for _ in range(options["repeats"])]
        train, aggregate, width = min(runs, key=lambda run: run[0] + run[1])
        with numerics(precision):
            one_by_one = min(loop(recipe, data, device) for _ in runs)
        sizes, sgd = [len(held) for held in data.client_indices], local_sgd(recipe)
        sequential = steps(plan_groups(range(clients), sizes, width), sizes, sgd)
        largest = steps([(clients,)], [*sizes, max(sizes)], sgd)
        cells = [
            *(condition, f"{train:.3f}", f"{aggregate:.3f}", f"{one_by_one:.3f}"),
            f"{one_by_one / (train + aggregate):.1f}",
            f"{operations(recipe, data) / train / product:.1%}",
            *(str(width), str(sequential), f"{sequential / largest:.2f}"),
            f"{launches(recipe, data, device, width):.0f}",
        ]
        click.echo(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
