"""One round of the paper's federation: FedML's single process, a plain loop, and ours.

    python tests/benchmarks/training.py mnist --clients 10
    python tests/benchmarks/training.py cifar10 --clients 10

The paper's network, data, partition (K = 100, non-IID, balanced), epochs and batch size; the first
``--clients`` of the 100 train, so a whole round takes 100 / clients times as long. Every contender
does the same steps in a process of its own, started as its users would start it; they take turns,
``--repeats`` times. Printed are medians, the spread from fastest to slowest of training and
aggregation, and the peak memory of the process; of training also the rate of its products
(convolutions and linear layers, counted by PyTorch's ``FlopCounterMode``) and its share of what
one large matrix product of the same precision reaches on the whole machine.
"""

from __future__ import annotations

import logging
import os
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import click
import torch
from contenders import CONTENDERS, Measure
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from fednnnn_plugin.data.federated import FederatedData, load_federated
from fednnnn_plugin.engine.devices import visible_gpus
from fednnnn_plugin.engine.records import Seconds
from fednnnn_plugin.engine.settings import data_spec
from fednnnn_plugin.models import create_model
from fednnnn_plugin.recipe import Recipe, find_recipe, load_recipe

DATA = str(Path(os.environ.get("FEDNNNN_DATA", "~/fedml_data")).expanduser())
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def settings(
    condition: str, clients: int, precision: str, folder: str, batching: int | str = "auto"
) -> Recipe:
    """Return the recipe of two rounds of so many clients."""
    keys = {
        "data_args.data_cache_dir": folder,
        "data_args.download": "false",
        "train_args.client_num_in_total": clients,
        "train_args.client_num_per_round": clients,
        "train_args.comm_round": 2,
        "train_args.precision": precision,
        "train_args.client_batching": batching,
        "validation_args.frequency_of_the_test": 1,
    }
    overrides = [f"{key}={value}" for key, value in keys.items()]
    return load_recipe(find_recipe(f"{condition}_fednnnn"), overrides)


def federated(recipe: Recipe) -> FederatedData:
    """Divide the data between the paper's 100 clients and keep the first."""
    data = load_federated(replace(data_spec(recipe), num_clients=100))
    return replace(
        data, client_indices=data.client_indices[: recipe.train_args.client_num_in_total]
    )


_measure: Measure  # in a contender's process


def _prepare(name: str, dataset: str, clients: int, folder: str) -> None:
    global _measure  # noqa: PLW0603
    logging.disable(logging.INFO)
    make, precision = CONTENDERS[name]
    recipe = settings(f"{dataset}_noniid_b", clients, precision, folder)
    _measure = make(recipe, federated(recipe), used_device())


def used_device() -> torch.device:
    """Return the GPU, if there is one."""
    return torch.device("cuda" if visible_gpus() else "cpu")


def _run() -> tuple[Seconds, float]:
    """Measure once; return the seconds and the peak memory of this process in MiB."""
    seconds = _measure()
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return seconds, int(status.split("VmHWM:")[1].split()[0]) / 1024


def operations(recipe: Recipe, data: FederatedData) -> float:
    """Count the floating-point operations of a round's products; a multiply-add is two."""
    model = create_model(recipe.model_args.model, 0)
    images, labels = data.client_data(0)
    batch = slice(recipe.train_args.batch_size)
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(model(images[batch]), labels[batch]).backward()
    per_image: float = counter.get_total_flops() / len(images[batch])
    total = sum(data.client_size(client) for client in range(data.num_clients))
    return per_image * total * recipe.train_args.epochs


def ceiling(dtype: torch.dtype, device: torch.device) -> float:
    """Return the floating-point operations a second of a large matrix product."""
    size = 2048 if device.type == "cpu" else 16384
    matrix = torch.randn(size, size, dtype=dtype, device=device)

    def seconds() -> float:
        started = time.perf_counter()
        # The copied element waits for a GPU.
        (matrix @ matrix)[0, 0].item()
        return time.perf_counter() - started

    seconds()
    return 2 * size**3 / min(seconds() for _ in range(5))


def compare(dataset: str, clients: int, repeats: int, folder: str) -> None:
    """Let the contenders take turns; print a table."""
    context = get_context("spawn")
    pools = {
        name: ProcessPoolExecutor(1, context, partial(_prepare, name, dataset, clients, folder))
        for name in CONTENDERS
    }
    results: dict[str, list[tuple[Seconds, float]]] = {name: [] for name in pools}
    recipe = settings(f"{dataset}_noniid_b", clients, "fp32", folder)
    flops = operations(recipe, federated(recipe))
    ceilings: dict[str, list[float]] = {precision: [] for precision in DTYPES}
    try:
        for _ in range(repeats):
            for precision, rates in ceilings.items():
                rates.append(ceiling(DTYPES[precision], used_device()))
            for name, pool in pools.items():
                results[name].append(pool.submit(_run).result())
    finally:
        for pool in pools.values():
            pool.shutdown(cancel_futures=True)
    click.echo(f"\n{dataset}, {clients} of 100 clients, one round, seconds, {repeats} repeats\n")
    click.echo(
        "| | train | aggregate | evaluate | train + aggregate | × FedML | peak MiB "
        "| GFLOP/s | of matmul |"
    )
    click.echo("|---|---|---|---|---|---|---|---|---|")
    reference = 0.0
    for name, runs in results.items():
        parts = [
            statistics.median(getattr(seconds, part) for seconds, _ in runs)
            for part in ("train", "aggregate", "evaluate")
        ]
        both = sorted(seconds.train + seconds.aggregate for seconds, _ in runs)
        middle = statistics.median(both)
        reference = reference or middle
        cells = [f"{value:.3f}" for value in parts]
        cells += [f"{middle:.2f} ({both[0]:.2f} to {both[-1]:.2f})", f"{reference / middle:.2f}"]
        rate = flops / parts[0]
        share = rate / statistics.median(ceilings[CONTENDERS[name][1]])
        cells += [f"{max(peak for _, peak in runs):.0f}", f"{rate / 1e9:.0f}", f"{share:.0%}"]
        click.echo(f"| {name} | {' | '.join(cells)} |")
    for precision, rates in ceilings.items():
        click.echo(f"matmul, {precision}: {statistics.median(rates) / 1e9:.0f} GFLOP/s")


@click.command(help=__doc__)
@click.argument("dataset", type=click.Choice(["mnist", "cifar10"]))
@click.option("--clients", default=10, show_default=True)
@click.option("--repeats", default=3, show_default=True)
@click.option("--data", default=DATA, type=click.Path(exists=True), show_default=True)
def main(dataset: str, clients: int, repeats: int, data: str) -> None:
    compare(dataset, clients, repeats, data)


if __name__ == "__main__":
    main()
