"""Client training and aggregation, side by side: FedML's single process, a plain loop, ours.

    python tests/benchmarks/training.py mnist --clients 10
    python tests/benchmarks/training.py cifar10 --clients 4 --data ~/fedml_data

The paper's network, data, partition (K = 100, non-IID, balanced), epochs and batch size; the first
``--clients`` of the 100 train, so a whole round takes 100 / clients times as long. The contenders
take turns, ``--repeats`` times; medians, and the spread from fastest to slowest. FedML and the
plain loop use PyTorch's default threads, as their users would.
"""

from __future__ import annotations

import copy
import logging
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from fednnnn_plugin.data.federated import FederatedData, load_federated
from fednnnn_plugin.engine.device import visible_gpus
from fednnnn_plugin.engine.launch import data_spec
from fednnnn_plugin.engine.run import run_federation
from fednnnn_plugin.models import create_model
from fednnnn_plugin.recipe import Recipe, find_recipe, load_recipe

Measure = Callable[[], float]


def load(name: str, folder: str, clients: int) -> tuple[Recipe, FederatedData]:
    """Load the recipe and the data, of which only the first clients are kept."""
    recipe = load_recipe(find_recipe(name), [f"data_args.data_cache_dir={folder}"])
    data = load_federated(data_spec(recipe))
    kept = FederatedData(
        data.train_images,
        data.train_labels,
        data.client_indices[:clients],
        data.test_images,
        data.test_labels,
        data.num_classes,
    )
    overrides = [
        f"data_args.data_cache_dir={folder}",
        f"train_args.client_num_in_total={clients}",
        f"train_args.client_num_per_round={clients}",
        "train_args.comm_round=2",
        "validation_args.frequency_of_the_test=1",
    ]
    return load_recipe(find_recipe(name), overrides), kept


def loaders(recipe: Recipe, data: FederatedData) -> list[DataLoader[Any]]:
    """Return the data as PyTorch's users have it."""
    return [
        DataLoader(
            TensorDataset(*data.client_data(client)),
            batch_size=recipe.train_args.batch_size,
            shuffle=True,
        )
        for client in range(data.num_clients)
    ]


def fedml_fedavg(recipe: Recipe, data: FederatedData, device: torch.device) -> Measure:
    """Return FedML's own single-process FedAvg: its clients, trainer and aggregation."""
    from types import SimpleNamespace

    from fedml.simulation.sp.fedavg.fedavg_api import FedAvgAPI

    train = recipe.train_args
    args = SimpleNamespace(
        dataset=recipe.data_args.dataset,
        client_num_in_total=data.num_clients,
        client_num_per_round=data.num_clients,
        client_optimizer="sgd",
        learning_rate=train.learning_rate,
        weight_decay=train.weight_decay,
        epochs=train.epochs,
        batch_size=train.batch_size,
        enable_wandb=False,
    )
    local = dict(enumerate(loaders(recipe, data)))
    sizes = {client: data.client_size(client) for client in local}
    total = sum(sizes.values())
    model = create_model(recipe.model_args.model, 0)
    dataset = [total, len(data.test_labels), None, None, sizes, local, local, data.num_classes]
    api = FedAvgAPI(args, device, dataset, model)

    def measure() -> float:
        weights = api.model_trainer.get_model_params()
        started = time.perf_counter()
        collected = []
        for client in api.client_list:
            trained = client.train(copy.deepcopy(weights))
            collected.append((client.get_sample_number(), copy.deepcopy(trained)))
        api._aggregate(collected)
        return time.perf_counter() - started

    return measure


def plain_loop(recipe: Recipe, data: FederatedData, device: torch.device) -> Measure:
    """Return what a researcher writes first: DataLoader, SGD, state dicts averaged."""
    train = recipe.train_args
    local = loaders(recipe, data)
    served = create_model(recipe.model_args.model, 0).to(device)

    def measure() -> float:
        started = time.perf_counter()
        states = []
        for loader in local:
            model = copy.deepcopy(served).train()
            optimizer = torch.optim.SGD(
                model.parameters(), lr=train.learning_rate, weight_decay=train.weight_decay
            )
            for _ in range(train.epochs):
                for images, labels in loader:
                    optimizer.zero_grad()
                    loss = F.cross_entropy(model(images.to(device)), labels.to(device))
                    loss.backward()
                    optimizer.step()
            states.append(model.state_dict())
        for name in states[0]:
            torch.stack([state[name].double() for state in states]).mean(0)
        return time.perf_counter() - started

    return measure


def ours(recipe: Recipe, data: FederatedData, device: torch.device, precision: str) -> Measure:
    """Return the engine: the second of two rounds, training and aggregation."""
    settings = recipe.model_copy(
        update={"train_args": recipe.train_args.model_copy(update={"precision": precision})}
    )
    model = create_model(recipe.model_args.model, 0)

    def measure() -> float:
        records = []
        with tempfile.TemporaryDirectory() as folder:
            run_federation(
                settings,
                model=model,
                data=data,
                device=device,
                folder=Path(folder) / "run",
                on_round=records.append,
            )
        seconds = records[-1].seconds
        parts = f"train {seconds.train:.3f}, aggregate {seconds.aggregate:.3f}"
        click.echo(f"  ours {precision}: {parts}, evaluate {seconds.evaluate:.3f} s")
        return seconds.train + seconds.aggregate

    return measure


@click.command()
@click.argument("dataset", type=click.Choice(["mnist", "cifar10"]))
@click.option("--clients", default=10, show_default=True)
@click.option("--repeats", default=3, show_default=True)
@click.option("--data", default="~/fedml_data", show_default=True)
def main(dataset: str, clients: int, repeats: int, data: str) -> None:
    """Time one round's training and aggregation."""
    logging.disable(logging.INFO)
    device = torch.device("cuda" if visible_gpus() else "cpu")
    recipe, federated = load(f"{dataset}_noniid_b_fednnnn", data, clients)
    contenders = {
        "FedML, single process": fedml_fedavg(recipe, federated, device),
        "plain PyTorch loop": plain_loop(recipe, federated, device),
        "ours, fp32": ours(recipe, federated, device, "fp32"),
        "ours, bf16": ours(recipe, federated, device, "bf16"),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, measure in contenders.items():
            times[name].append(measure())
    reference = statistics.median(times["FedML, single process"])
    click.echo(f"{dataset}, {clients} clients, {torch.get_num_threads()} threads, {device}")
    for name, values in times.items():
        middle = statistics.median(values)
        click.echo(
            f"{name:24} {middle:8.2f} s  ({min(values):.2f} to {max(values):.2f})  "
            f"{reference / middle:5.2f} × FedML"
        )


if __name__ == "__main__":
    main()
